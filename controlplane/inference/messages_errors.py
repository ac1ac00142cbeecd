"""Errors in Anthropic's envelope, with their types."""

from __future__ import annotations

from typing import Any

import msgspec
from django.http import HttpResponse

from controlplane.inference.errors import ApiError
from controlplane.middleware import current_request_id

_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}
_UNSUPPORTED = frozenset({"thread_unsupported_request", "unsupported_parameter"})
OVERLOADED = 529
"""What this protocol says for 503."""


def error_type(status: int) -> str:
    return _TYPES.get(status, "api_error" if status >= 500 else "invalid_request_error")


def error_body(error: ApiError, request_id: str) -> dict[str, Any]:
    detail: dict[str, Any] = {"type": error_type(error.status), "message": str(error)}
    if error.detail.code is not None:
        detail["details"] = {"error_code": error.detail.code}
        if error.detail.param is not None and error.detail.code in _UNSUPPORTED:
            detail["details"]["unsupported"] = [error.detail.param]
    return {
        "type": "error",
        "error": detail,
        "request_id": request_id,
    }


def error_response(error: ApiError) -> HttpResponse:
    """The response before the first byte."""
    response = error.response()
    response.content = msgspec.json.encode(error_body(error, current_request_id()))
    if error.status == 503:
        response.status_code = OVERLOADED
    return response
