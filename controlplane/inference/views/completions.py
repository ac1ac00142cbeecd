"""`POST /v1/completions`."""

from __future__ import annotations

from django.http import HttpRequest
from django.http.response import HttpResponseBase

from controlplane.inference.api import api_view
from controlplane.inference.limits import GatewayLimits
from controlplane.inference.replies.completions import CompletionFormat
from controlplane.inference.schema.call import Call
from controlplane.inference.schema.completions import parse_completion
from controlplane.inference.serving import generate


def _parse(body: bytes, limits: GatewayLimits) -> Call:
    return parse_completion(body, max_choices=limits.choices, max_prompts=limits.prompts)


@api_view("POST")
async def completions(request: HttpRequest) -> HttpResponseBase:
    return await generate(request, _parse, CompletionFormat)
