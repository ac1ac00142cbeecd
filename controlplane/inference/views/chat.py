"""`POST /v1/chat/completions`."""

from __future__ import annotations

from django.http import HttpRequest
from django.http.response import HttpResponseBase

from controlplane.inference.api import api_view
from controlplane.inference.replies.chat import ChatFormat
from controlplane.inference.schema.chat import parse_chat
from controlplane.inference.serving import generate


@api_view("POST")
async def chat_completions(request: HttpRequest) -> HttpResponseBase:
    return await generate(request, lambda body, limits: parse_chat(body, max_choices=limits.choices), ChatFormat)
