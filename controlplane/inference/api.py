"""The frame of every inference view: JSON errors in the protocol's shape, the Host header checked, nothing leaked."""

from __future__ import annotations

import functools
import inspect
import logging
import time
from collections.abc import Callable, Coroutine
from typing import Any

from django.core.exceptions import DisallowedHost
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.views.decorators.csrf import csrf_exempt

from controlplane.inference import messages_errors
from controlplane.inference.errors import ApiError, internal, invalid
from controlplane.inference.limits_headers import limit_headers
from controlplane.middleware import current_request_id

log = logging.getLogger(__name__)

View = Callable[..., Coroutine[Any, Any, HttpResponseBase]]
ErrorResponse = Callable[..., HttpResponse]
ANTHROPIC_VERSION = "anthropic-version"


def openai_errors(error: ApiError) -> HttpResponse:
    return error.response()


def errors_by_header(error: ApiError, request: HttpRequest) -> HttpResponse:
    """In the shape of the protocol that the client names."""
    return messages_errors.error_response(error) if ANTHROPIC_VERSION in request.headers else error.response()


def speaks_messages(path: str) -> bool:
    """Whether a path belongs to the Messages protocol alone."""
    return path.startswith(("/anthropic", "/v1/messages"))


def errors_by_path(error: ApiError, request: HttpRequest) -> HttpResponse:
    below = speaks_messages(request.path)
    return messages_errors.error_response(error) if below else errors_by_header(error, request)


def api_view(*methods: str, errors: ErrorResponse = openai_errors) -> Callable[[View], View]:
    """Turns ApiError into a response. Exempt from CSRF by default: `authentication` checks it for sessions.

    `errors` writes them: `(error)` or `(error, request)`, by what the protocol needs.
    """
    takes_request = len(inspect.signature(errors).parameters) > 1

    def decorate(view: View) -> View:
        @functools.wraps(view)
        async def handled(request: HttpRequest, **arguments: str) -> HttpResponseBase:
            response = await answer(request, **arguments)
            # Failures are logged where they are understood; Django would log each 4xx and 5xx once more.
            response._has_been_logged = True  # type: ignore[attr-defined]
            response["x-content-type-options"] = "nosniff"
            response["request-id"] = current_request_id()  # the name by which Anthropic's SDK knows it
            for name, value in limit_headers(request.path).items():
                response[name] = value
            return response

        def failed(error: ApiError, request: HttpRequest) -> HttpResponse:
            return errors(error, request) if takes_request else errors(error)

        async def answer(request: HttpRequest, **arguments: str) -> HttpResponseBase:
            request.accepted_at = time.monotonic()  # type: ignore[attr-defined]
            try:
                request.get_host()  # raises for names that are not ours
                if request.method not in methods:
                    return _not_allowed(request, methods, failed)
                return await view(request, **arguments)
            except ApiError as error:
                return failed(error, request)
            except DisallowedHost:
                return failed(invalid("The Host header names a host that this server does not serve."), request)
            except Exception:
                log.exception("request %s failed", current_request_id())
                return failed(internal(), request)

        return csrf_exempt(handled)

    return decorate


def _not_allowed(
    request: HttpRequest, methods: tuple[str, ...], failed: Callable[[ApiError, HttpRequest], HttpResponse]
) -> HttpResponse:
    allowed = ", ".join(methods)
    error = ApiError(405, f"{request.method} is not allowed here; use {allowed}.", code="method_not_allowed")
    response = failed(error, request)
    response["allow"] = allowed
    return response
