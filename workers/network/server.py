"""The accepting end of TCP: one port for frames and for blocks, told apart by the first bytes of a connection.

Nothing of a stranger is kept for longer than the deadline, and there is a bound on how many may be greeting at once.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable

from workers.network.endpoints import parse_endpoint
from workers.network.handshake import PURPOSE_BYTES, Binding, Purpose, as_server
from workers.network.security import LinkSecurity
from workers.network.sockets import tune
from workers.network.streams import exchange
from workers.network.tls import Contexts

logger = logging.getLogger(__name__)

MAX_GREETING = 64
"""Connections that have not proved anything yet; further ones are closed at once."""
_BACKLOG = 128

OnFrames = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
OnBlocks = Callable[[socket.socket], None]


class TcpServer:
    """Accepts on `listen`; proofs are bound to `advertised`, the endpoint that peers dial."""

    def __init__(
        self,
        *,
        listen: str,
        advertised: str,
        security: LinkSecurity,
        contexts: Contexts,
        greeting_s: float,
        on_frames: OnFrames,
        on_blocks: OnBlocks,
    ) -> None:
        """`on_frames` serves an authenticated stream to its end; `on_blocks` takes a socket as it was accepted (its
        TLS and proof are made by whoever reads it, on a thread).
        """
        self._listen, self._advertised = listen, advertised
        self._security, self._contexts = security, contexts
        self._greeting_s = greeting_s
        self._on_frames, self._on_blocks = on_frames, on_blocks
        self._socket: socket.socket | None = None
        self._accepting: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._greeting = 0
        self.refused = 0
        """Connections closed before they proved what they had to."""

    def start(self) -> None:
        """Raises InsecureLink where the settings forbid it, OSError where the address cannot be bound."""
        _, (host, port) = parse_endpoint(self._listen)
        self._security.check(host, listening=True)
        self._security.read_secret()
        if self._security.tls:
            self._contexts.server()
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.create_server((host, port), family=family, backlog=_BACKLOG)
        self._socket.setblocking(False)
        self._accepting = asyncio.get_running_loop().create_task(self._accept())

    @property
    def port(self) -> int:
        assert self._socket is not None
        port: int = self._socket.getsockname()[1]
        return port

    def close(self) -> None:
        """Accept nothing more; what was accepted goes on."""
        if self._accepting is not None:
            self._accepting.cancel()
        if self._socket is not None:
            self._socket.close()

    async def _accept(self) -> None:
        assert self._socket is not None
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, peer = await loop.sock_accept(self._socket)
            except OSError as error:  # out of descriptors, or it was gone before it was taken
                logger.warning("a connection could not be accepted: %s", error)
                await asyncio.sleep(0.1)
                continue
            if self._greeting >= MAX_GREETING:
                self.refused += 1
                connection.close()
                continue
            connection.setblocking(False)
            self._greeting += 1
            task = loop.create_task(self._serve(connection, f"{peer[0]}:{peer[1]}"))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _serve(self, connection: socket.socket, peer: str) -> None:
        streams = None
        try:
            async with asyncio.timeout(self._greeting_s):
                tune(connection)
                purpose = await self._purpose(connection)
                if purpose is Purpose.FRAMES:
                    streams = await self._secured(connection)
        except (OSError, TimeoutError, EOFError, ValueError) as error:
            self.refused += 1
            logger.warning("a TCP connection of %s was refused: %s", peer, str(error) or type(error).__name__)
            connection.close()
            return
        finally:
            self._greeting -= 1
        if streams is not None:
            await self._on_frames(*streams)
        else:
            connection.setblocking(True)
            self._on_blocks(connection)

    async def _purpose(self, connection: socket.socket) -> Purpose:
        loop = asyncio.get_running_loop()
        head = b""
        while len(head) < PURPOSE_BYTES:
            more = await loop.sock_recv(connection, PURPOSE_BYTES - len(head))
            if not more:
                raise EOFError("it said nothing")
            head += more
        return Purpose(head)

    async def _secured(self, connection: socket.socket) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        loop = asyncio.get_running_loop()
        context, certificate = self._contexts.server() if self._security.tls else (None, b"")
        reader = asyncio.StreamReader(loop=loop)
        protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
        transport, _ = await loop.connect_accepted_socket(lambda: protocol, connection, ssl=context)
        writer = asyncio.StreamWriter(transport, protocol, reader, loop)
        try:
            if secret := self._security.read_secret():
                binding = Binding(Purpose.FRAMES, self._advertised, certificate)
                await exchange(reader, writer, as_server(secret, binding))
        except BaseException:  # also a secret that cannot be read: the transport has the descriptor
            transport.abort()
            raise
        return reader, writer
