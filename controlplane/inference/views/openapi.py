"""`GET /v1/openapi.json`: needs no key, says nothing that the documentation does not."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase

from controlplane.inference.api import api_view
from controlplane.inference.openapi import document
from controlplane.inference.replies.base import encode


@api_view("GET", "HEAD")
async def openapi(request: HttpRequest) -> HttpResponseBase:
    return HttpResponse(encode(document()), content_type="application/json")
