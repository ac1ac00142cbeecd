"""`POST /v1/responses`."""

from __future__ import annotations

from django.http import HttpRequest
from django.http.response import HttpResponseBase

from controlplane.inference.api import api_view
from controlplane.inference.replies.responses import ResponsesFormat
from controlplane.inference.schema.responses import parse_response
from controlplane.inference.serving import generate


@api_view("POST")
async def responses(request: HttpRequest) -> HttpResponseBase:
    return await generate(request, lambda body, limits: parse_response(body), ResponsesFormat)
