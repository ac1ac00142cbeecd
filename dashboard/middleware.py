"""The Content-Security-Policy of every page: nothing from elsewhere, nothing inline."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import cast

from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.http import HttpRequest
from django.http.response import HttpResponseBase

GetResponse = Callable[[HttpRequest], HttpResponseBase | Awaitable[HttpResponseBase]]


def content_security_policy(host: str) -> str:
    """`host` is validated against ALLOWED_HOSTS; older Safari wants it named, to it `'self'` is no WebSocket."""
    return (
        "default-src 'none'; script-src 'self'; style-src 'self'; font-src 'self'; img-src 'self' data:; "
        f"connect-src 'self' ws://{host} wss://{host}; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    )


class ContentSecurityPolicyMiddleware:
    """Adds the header to HTML; other content types run nothing."""

    sync_capable = True
    async_capable = True

    def __init__(self, get_response: GetResponse) -> None:
        self.get_response = get_response
        self._is_async = iscoroutinefunction(get_response)
        if self._is_async:
            markcoroutinefunction(self)

    def __call__(self, request: HttpRequest) -> HttpResponseBase | Awaitable[HttpResponseBase]:
        if self._is_async:
            return self._acall(request)
        return self._add(request, cast(HttpResponseBase, self.get_response(request)))

    async def _acall(self, request: HttpRequest) -> HttpResponseBase:
        return self._add(request, await cast(Awaitable[HttpResponseBase], self.get_response(request)))

    @staticmethod
    def _add(request: HttpRequest, response: HttpResponseBase) -> HttpResponseBase:
        if response.headers.get("Content-Type", "").startswith("text/html"):
            # A request with a forged Host was answered 400 before this; its policy names no host.
            host = request.get_host() if response.status_code != 400 else "'none'"
            response.headers.setdefault("Content-Security-Policy", content_security_policy(host))
            response.headers.setdefault("Permissions-Policy", "camera=(), microphone=(), geolocation=()")
        return response
