"""A TCP proxy that does to a connection what networks do: damage, delay, cut, swallow."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field


@dataclass
class Meddler:
    """Passes bytes on between `port` and whoever connects. What it does applies to bytes towards the client."""

    target: int
    flip_after: list[int] = field(default_factory=list)
    """One for each connection, in order: damage the byte at this offset. Further connections are left alone."""
    cut_after: list[int] = field(default_factory=list)
    """The same: close both ends after so many bytes."""
    swallow: bool = False
    """Pass nothing on any more, either way, and keep everything open: a host that vanished."""
    bytes_per_s: float = float("inf")
    connections: int = 0
    _writers: list[asyncio.StreamWriter] = field(default_factory=list)
    _tasks: list[asyncio.Future[None]] = field(default_factory=list)

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[int]:
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        try:
            yield server.sockets[0].getsockname()[1]
        finally:
            server.close()
            for writer in self._writers:
                writer.transport.abort()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._tasks.append(asyncio.ensure_future(self._both(reader, writer)))

    async def _both(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        number, self.connections = self.connections, self.connections + 1
        there_reader, there_writer = await asyncio.open_connection("127.0.0.1", self.target)
        self._writers += [writer, there_writer]
        flip = self.flip_after[number] if number < len(self.flip_after) else None
        cut = self.cut_after[number] if number < len(self.cut_after) else None
        await asyncio.gather(self._pass(reader, there_writer, None, None), self._pass(there_reader, writer, flip, cut))

    async def _pass(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, flip: int | None, cut: int | None
    ) -> None:
        done = 0
        try:
            while data := await reader.read(64 * 1024):
                if self.swallow:
                    continue
                if flip is not None and done <= flip < done + len(data):
                    damaged = bytearray(data)
                    damaged[flip - done] ^= 0x10
                    data = bytes(damaged)
                if cut is not None and done + len(data) > cut:
                    writer.write(data[: cut - done])
                    await writer.drain()
                    break
                done += len(data)
                if self.bytes_per_s < float("inf"):
                    await asyncio.sleep(len(data) / self.bytes_per_s)
                writer.write(data)
                await writer.drain()
        except ConnectionError:
            pass
        writer.close()
