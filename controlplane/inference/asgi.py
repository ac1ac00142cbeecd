"""The inference API's own way through ASGI: bounded bodies, no page middleware, start and stop with the server.

Django's middleware chain enters a thread for each of its synchronous parts and holds one while a view runs. The
API needs no middleware: keys are checked in the view, sessions only where there is no key. So no thread is held while a
request waits or streams; Django's handler enters one briefly at the beginning and the end of each request, for its
signals (they close old connections), and so does a key that is looked up in the database.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import msgspec
from django.core.handlers.asgi import ASGIHandler
from django.core.handlers.exception import convert_exception_to_response

from controlplane.inference.api import ANTHROPIC_VERSION, speaks_messages
from controlplane.inference.errors import ApiError, too_large
from controlplane.inference.limits import GatewayLimits
from controlplane.inference.messages_errors import error_body
from controlplane.inference.runtime import current, gateways
from controlplane.middleware import REQUEST_ID_HEADER, RequestIdMiddleware, new_request_id

log = logging.getLogger(__name__)

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

_PATHS = ("/healthz", "/readyz")
_PREFIXES = ("/v1", "/anthropic")


class InferenceHandler(ASGIHandler):
    """Django's handler with the request id as its only middleware."""

    def load_middleware(self, is_async: bool = False) -> None:
        self._view_middleware: list[Any] = []
        self._template_response_middleware: list[Any] = []
        self._exception_middleware: list[Any] = []
        inner = convert_exception_to_response(self._get_response_async)  # type: ignore[attr-defined]
        self._middleware_chain = convert_exception_to_response(RequestIdMiddleware(inner))


class HttpApplication:
    """Sends inference paths to their handler and everything else to Django; bounds every body for both."""

    def __init__(self, django: ASGIHandler, limits: GatewayLimits | None = None) -> None:
        self._django = django
        self._inference = InferenceHandler()
        self._limits = limits or GatewayLimits()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path: str = scope["path"]
        inference = path in _PATHS or path in _PREFIXES or path.startswith(tuple(f"{one}/" for one in _PREFIXES))
        application: Any = self._inference if inference else self._django
        body = _BoundedBody(receive, self._limits)
        try:
            await application(scope, body.receive, send)
        except _BodyRefused as refusal:
            # Django reads the body before anything else, so nothing was sent.
            await _send_error(refusal.error, scope, send)


class _BodyRefused(Exception):
    def __init__(self, error: ApiError) -> None:
        super().__init__(str(error))
        self.error = error


class _BoundedBody:
    """`receive` with a bound on the bytes of the body and on the time it may take."""

    def __init__(self, receive: Receive, limits: GatewayLimits) -> None:
        self._receive = receive
        self._limits = limits
        self._bytes = 0
        self._complete = False
        self._until = asyncio.get_running_loop().time() + limits.body_wait_s

    async def receive(self) -> Message:
        if self._complete:
            return await self._receive()  # waits for the disconnect
        try:
            async with asyncio.timeout_at(self._until):
                message = await self._receive()
        except TimeoutError:
            raise _BodyRefused(
                ApiError(408, "The request body took too long to arrive.", type="timeout_error", code="body_timeout")
            ) from None
        self._bytes += len(message.get("body", b""))
        if self._bytes > self._limits.body_bytes:
            raise _BodyRefused(too_large(self._limits.body_bytes))
        self._complete = not message.get("more_body", False)
        return message


async def _send_error(error: ApiError, scope: Scope, send: Send) -> None:
    """In the shape of the protocol that the client speaks, by path or header, as the views do."""
    request_id = new_request_id()
    named = any(name == ANTHROPIC_VERSION.encode() for name, _ in scope["headers"])
    messages = named or speaks_messages(scope["path"])
    body = msgspec.json.encode(error_body(error, request_id)) if messages else error.body()
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"connection", b"close"),  # the rest of the body is not read
        (REQUEST_ID_HEADER.encode(), request_id.encode()),
        (b"request-id", request_id.encode()),
    ]
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def lifespan(scope: Scope, receive: Receive, send: Send) -> None:
    """Starts the gateway with the server, and closes its connections (which cancels what runs) when the server stops.

    A gateway that cannot start does not keep the server down: the first request tries again.
    """
    while True:
        message = await receive()
        if message["type"] == "lifespan.startup":
            try:
                await current()
            except Exception:
                log.exception("the gateway did not start; the next request tries again")
            await send({"type": "lifespan.startup.complete"})
        else:
            await gateways().stop()
            await send({"type": "lifespan.shutdown.complete"})
            return
