"""The frame of every inference view: JSON errors in OpenAI's shape, the Host header checked, nothing leaked."""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable, Coroutine
from typing import Any

from django.core.exceptions import DisallowedHost
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.views.decorators.csrf import csrf_exempt

from controlplane.inference.errors import ApiError, internal, invalid
from controlplane.middleware import current_request_id

log = logging.getLogger(__name__)

View = Callable[..., Coroutine[Any, Any, HttpResponseBase]]


def api_view(*methods: str) -> Callable[[View], View]:
    """Turns ApiError into a response. Exempt from CSRF by default: `authentication` checks it for sessions."""

    def decorate(view: View) -> View:
        @functools.wraps(view)
        async def handled(request: HttpRequest, **arguments: str) -> HttpResponseBase:
            response = await answer(request, **arguments)
            # Failures are logged where they are understood; Django would log each 4xx and 5xx once more.
            response._has_been_logged = True  # type: ignore[attr-defined]
            response["x-content-type-options"] = "nosniff"
            return response

        async def answer(request: HttpRequest, **arguments: str) -> HttpResponseBase:
            request.accepted_at = time.monotonic()  # type: ignore[attr-defined]
            try:
                request.get_host()  # raises for names that are not ours
                if request.method not in methods:
                    return _not_allowed(request, methods)
                return await view(request, **arguments)
            except ApiError as error:
                return error.response()
            except DisallowedHost:
                return invalid("The Host header names a host that this server does not serve.").response()
            except Exception:
                log.exception("request %s failed", current_request_id())
                return internal().response()

        return csrf_exempt(handled)

    return decorate


def _not_allowed(request: HttpRequest, methods: tuple[str, ...]) -> HttpResponseBase:
    allowed = ", ".join(methods)
    error = ApiError(405, f"{request.method} is not allowed here; use {allowed}.", code="method_not_allowed")
    response = error.response()
    response["allow"] = allowed
    return response
