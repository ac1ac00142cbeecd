"""`x-request-id` on every response, and in a context variable that audit rows and log lines read.

The id is made here and never taken from a client: it is unique in the ledger, and a client's text never reaches a log.
"""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Final, cast

from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.http import HttpRequest
from django.http.response import HttpResponseBase

REQUEST_ID_HEADER: Final = "x-request-id"

_request_id: ContextVar[str] = ContextVar("galley_request_id", default="")

GetResponse = Callable[[HttpRequest], HttpResponseBase | Awaitable[HttpResponseBase]]


def new_request_id() -> str:
    """`req_` and 32 hexadecimal digits; unique."""
    return f"req_{uuid.uuid4().hex}"


def current_request_id() -> str:
    """The id of the request being handled in this context, or "" (commands, tasks)."""
    return _request_id.get()


class RequestIdMiddleware:
    """Gives each request its id (`request.request_id`) and puts it on the response. First in MIDDLEWARE."""

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
        token = _request_id.set(self._assign(request))
        try:
            return self._stamp(request, cast(HttpResponseBase, self.get_response(request)))
        finally:
            _request_id.reset(token)

    async def _acall(self, request: HttpRequest) -> HttpResponseBase:
        # Not reset: the context is the request's own task, and a streaming response goes on reading it.
        _request_id.set(self._assign(request))
        return self._stamp(request, await cast(Awaitable[HttpResponseBase], self.get_response(request)))

    @staticmethod
    def _assign(request: HttpRequest) -> str:
        identifier = new_request_id()
        request.request_id = identifier  # type: ignore[attr-defined]
        return identifier

    @staticmethod
    def _stamp(request: HttpRequest, response: HttpResponseBase) -> HttpResponseBase:
        response[REQUEST_ID_HEADER] = request.request_id  # type: ignore[attr-defined]
        return response
