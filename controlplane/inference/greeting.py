"""The first frame each way between the gateway and a worker."""

from __future__ import annotations

import asyncio

from workers.protocol import Address, ErrorCode, Hello, PeerKind, Refused, Welcome, encode, read_frame


class GreetingFailed(Exception):
    def __init__(self, code: ErrorCode | None, message: str) -> None:
        super().__init__(message)
        self.code = code


async def greet(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, gateway: str, expect: Address | None
) -> Welcome:
    """Raises GreetingFailed, ProtocolError, OSError."""
    writer.write(encode(Hello(peer=gateway, kind=PeerKind.GATEWAY, expect=expect)))
    answer = await read_frame(reader)
    if isinstance(answer, Refused):
        raise GreetingFailed(answer.code, f"refused: {answer.message}")
    if not isinstance(answer, Welcome):
        raise GreetingFailed(None, "closed before the greeting")
    return answer
