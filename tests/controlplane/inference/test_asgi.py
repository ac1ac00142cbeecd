"""Bodies that are refused while they come: the status, and the shape of the protocol that is spoken."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest
from django.core.handlers.asgi import ASGIHandler

from controlplane.inference.asgi import HttpApplication
from controlplane.inference.limits import GatewayLimits


async def answer(path: str, *, parts: list[bytes], headers: dict[str, str] | None = None, **limits: Any) -> Any:
    """(status, headers, body) of a POST whose body never ends."""
    application = HttpApplication(ASGIHandler(), replace(GatewayLimits(), **limits))
    coming = iter(parts)
    sent: list[Any] = []

    async def receive() -> Any:
        part = next(coming, None)
        if part is None:
            await asyncio.Event().wait()
        return {"type": "http.request", "body": part, "more_body": True}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http", "method": "POST", "path": path, "root_path": "", "query_string": b"", "scheme": "http",
        "headers": [(name.encode(), value.encode()) for name, value in (headers or {}).items()],
    }  # fmt: skip
    await application(scope, receive, send)
    start, body = sent
    named = {name.decode(): value.decode() for name, value in start["headers"]}
    return start["status"], named, json.loads(body["body"])


FAILURES = [
    pytest.param({"parts": [b"x" * 60, b"x" * 60], "body_bytes": 100}, 413, "request_too_large", id="too large"),
    pytest.param({"parts": [b"x"], "body_wait_s": 0.05}, 408, "timeout_error", id="too slow"),
]


@pytest.mark.parametrize(("sent", "status", "kind"), FAILURES)
@pytest.mark.parametrize(
    ("path", "headers"),
    [
        ("/v1/messages", {}),
        ("/v1/messages/count_tokens", {}),
        ("/anthropic/v1/messages", {}),
        ("/v1/models", {"anthropic-version": "2023-06-01"}),
    ],
)
async def test_messages(path: str, headers: dict[str, str], sent: Any, status: int, kind: str) -> None:
    found, named, body = await answer(path, headers=headers, **sent)
    assert (found, body["type"], body["error"]["type"]) == (status, "error", kind)
    assert body["request_id"] == named["x-request-id"] == named["request-id"]
    assert body["request_id"].startswith("req_")


@pytest.mark.parametrize(("sent", "status", "kind"), FAILURES)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses"])
async def test_the_others(path: str, sent: Any, status: int, kind: str) -> None:
    found, named, body = await answer(path, **sent)
    assert found == status
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert named["x-request-id"] == named["request-id"]
    assert named["connection"] == "close"
