"""`GET /healthz`: the process answers. `GET /readyz`: tokens come through. Neither needs a key."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase

from controlplane.inference.api import api_view
from controlplane.inference.replies.base import encode
from controlplane.inference.runtime import current


@api_view("GET", "HEAD")
async def healthz(request: HttpRequest) -> HttpResponseBase:
    return HttpResponse(encode({"status": "ok"}), content_type="application/json")


@api_view("GET", "HEAD")
async def readyz(request: HttpRequest) -> HttpResponseBase:
    verdict = await (await current()).readiness.check()
    return HttpResponse(encode(verdict), status=200 if verdict.ready else 503, content_type="application/json")
