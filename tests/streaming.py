"""Reading a streamed response of Django's test client."""

from __future__ import annotations

from typing import Any

from asgiref.sync import async_to_sync


def streamed(response: Any) -> str:
    """The whole body, whichever kind of iterator it comes from."""

    async def collect() -> bytes:
        return b"".join([part async for part in response.streaming_content])

    body = async_to_sync(collect)() if response.is_async else b"".join(response.streaming_content)
    return body.decode()
