"""`POST /v1/messages` and `POST /v1/messages/count_tokens`."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase

from controlplane.inference.api import api_view
from controlplane.inference.messages_errors import error_response
from controlplane.inference.replies.base import encode
from controlplane.inference.replies.messages import MessagesFormat
from controlplane.inference.schema.messages import parse_messages
from controlplane.inference.serving import JSON, accept, count_tokens, generate


@api_view("POST", errors=error_response)
async def messages(request: HttpRequest) -> HttpResponseBase:
    return await generate(request, lambda body, limits: parse_messages(body), MessagesFormat)


@api_view("POST", errors=error_response)
async def messages_count_tokens(request: HttpRequest) -> HttpResponseBase:
    served = await accept(request, lambda body, limits: parse_messages(body, counting=True))
    return HttpResponse(encode({"input_tokens": await count_tokens(served)}), content_type=JSON)
