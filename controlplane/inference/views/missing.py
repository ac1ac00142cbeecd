"""Everything else below `/v1/`: a JSON 404, as SDKs expect."""

from __future__ import annotations

from django.http import HttpRequest
from django.http.response import HttpResponseBase

from controlplane.inference.api import api_view, errors_by_path
from controlplane.inference.errors import ApiError


@api_view("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", errors=errors_by_path)
async def missing(request: HttpRequest) -> HttpResponseBase:
    raise ApiError(404, f"There is no endpoint {request.method} {request.path[:200]}.", code="not_found")
