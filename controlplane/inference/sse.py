"""Server-sent events."""

from __future__ import annotations

KEEP_ALIVE = b": keep-alive\n\n"
DONE = b"data: [DONE]\n\n"
HEADERS = {
    "cache-control": "no-cache, no-transform",
    "x-accel-buffering": "no",  # proxies pass each event on at once
}
CONTENT_TYPE = "text/event-stream; charset=utf-8"


def event(data: bytes) -> bytes:
    """`data` must hold no line break, which encoded JSON never does."""
    return b"data: " + data + b"\n\n"
