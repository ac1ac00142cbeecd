"""Dialling a worker and the first frame each way."""

from __future__ import annotations

import asyncio
import socket

from workers.protocol import Address, Endpoint, ErrorCode, Hello, PeerKind, Refused, Welcome, encode, read_frame


class GreetingFailed(Exception):
    def __init__(self, code: ErrorCode | None, message: str) -> None:
        super().__init__(message)
        self.code = code


async def open_stream(endpoint: Endpoint) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Raises OSError; ValueError for what is no endpoint."""
    kind, _, rest = endpoint.partition(":")
    if kind == "unix":
        return await asyncio.open_unix_connection(rest)
    if kind != "tcp":
        raise ValueError(f"{endpoint!r} is neither unix:PATH nor tcp:HOST:PORT")
    host, _, port = rest.rpartition(":")
    reader, writer = await asyncio.open_connection(host.strip("[]"), int(port))
    writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return reader, writer


async def greet(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, gateway: str, expect: Address | None, secret: str
) -> Welcome:
    """Raises GreetingFailed, ProtocolError, OSError."""
    writer.write(encode(Hello(peer=gateway, kind=PeerKind.GATEWAY, expect=expect, secret=secret)))
    answer = await read_frame(reader)
    if isinstance(answer, Refused):
        raise GreetingFailed(answer.code, f"refused: {answer.message}")
    if not isinstance(answer, Welcome):
        raise GreetingFailed(None, "closed before the greeting")
    return answer
