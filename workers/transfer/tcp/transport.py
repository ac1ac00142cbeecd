"""Both ends of the TCP transport, and the choice of shared memory where the peer turns out to be on this host."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from dataclasses import dataclass

from workers import protocol
from workers.network.endpoints import host_id, parse_endpoint
from workers.network.security import LinkSecurity
from workers.network.streams import open_stream
from workers.network.tls import Contexts
from workers.protocol import Address, ArenaOffer, Endpoint, Hello, ProtocolError, Refused, Welcome
from workers.spec import TransferChoice
from workers.transfer.base import ArenaLike, Dialled, Offered, PeerUnreachable, Transport
from workers.transfer.deadlines import Deadlines
from workers.transfer.tcp.owner import BlockOwner, Ticket
from workers.transfer.tcp.source import WAY, RemoteArena

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class OfferedOverTcp(Offered):
    owner: BlockOwner
    ticket: Ticket

    def withdraw(self) -> None:
        self.owner.revoke(self.ticket)


class Tcp(Transport):
    def __init__(
        self,
        security: LinkSecurity,
        contexts: Contexts,
        deadlines: Deadlines,
        owner: BlockOwner,
        choice: TransferChoice,
        shared_memory: Transport,
    ) -> None:
        self._security, self._contexts = security, contexts
        self._deadlines = deadlines
        self._owner = owner
        self._choice = choice
        self._shared_memory = shared_memory
        self._lock = threading.Lock()
        self.damaged_blocks = 0
        """Read here with a CRC that did not fit, also where a second reading was sound."""

    def _damaged(self) -> None:
        with self._lock:
            self.damaged_blocks += 1

    async def offer(self, writer: asyncio.StreamWriter, arena: ArenaLike, peer: Address) -> Offered:
        ticket = self._owner.issue(peer, arena)
        offer = ArenaOffer(
            header_bytes=arena.header_bytes,
            blocks_total=arena.blocks_total,
            block_bytes=arena.block_bytes,
            ways={WAY: ticket.value},
        )
        writer.write(protocol.encode(offer))
        return OfferedOverTcp(self._owner, ticket)

    async def dial(self, endpoint: Endpoint, hello: Hello) -> Dialled:
        try:
            reader, writer = await open_stream(endpoint, self._security, self._contexts)
        except (OSError, ValueError) as error:
            raise PeerUnreachable(f"{endpoint}: {error}") from error
        source: RemoteArena | None = None
        try:
            writer.write(protocol.encode(hello))
            welcome = await _greeting(reader, endpoint)
            nearer = await self._nearer(welcome, hello)
            if nearer is not None:
                writer.close()
                return nearer
            offer = await protocol.read_frame(reader)
            if not isinstance(offer, ArenaOffer):
                raise PeerUnreachable(f"{endpoint} offered no arena ({type(offer).__name__})")
            source = RemoteArena(
                endpoint, welcome.address, offer, self._security, self._contexts, self._deadlines, self._damaged
            )
            await source.open()
            return Dialled(reader, writer, welcome, source)
        except (OSError, ProtocolError) as error:
            _abandon(writer, source)
            raise PeerUnreachable(f"{endpoint}: {error}") from error
        except BaseException:
            _abandon(writer, source)
            raise

    async def _nearer(self, welcome: Welcome, hello: Hello) -> Dialled | None:
        """The same worker through shared memory, where it is on this host and its socket can be reached from here."""
        if self._choice is TransferChoice.TCP:
            return None
        here = host_id()
        if here and welcome.host == here and welcome.local is not None:
            try:
                return await self._shared_memory.dial(welcome.local, hello)
            except PeerUnreachable as error:
                if self._choice is TransferChoice.SHARED_MEMORY:
                    raise
                logger.info("no shared memory with %s on this host (%s): TCP", welcome.address, error)
        elif self._choice is TransferChoice.SHARED_MEMORY:
            raise PeerUnreachable(f"{welcome.address} is on another host, and transfer is set to shared memory")
        return None


class Transports(Transport):
    """The one that fits the endpoint that is dialled, or the socket that was accepted."""

    def __init__(self, shared_memory: Transport, tcp: Tcp) -> None:
        self._shared_memory, self._tcp = shared_memory, tcp

    async def dial(self, endpoint: Endpoint, hello: Hello) -> Dialled:
        try:
            scheme, _ = parse_endpoint(endpoint)
        except ValueError as error:
            raise PeerUnreachable(str(error)) from error
        return await (self._shared_memory if scheme == "unix" else self._tcp).dial(endpoint, hello)

    async def offer(self, writer: asyncio.StreamWriter, arena: ArenaLike, peer: Address) -> Offered:
        local = is_unix(writer)
        return await (self._shared_memory if local else self._tcp).offer(writer, arena, peer)


def is_unix(writer: asyncio.StreamWriter) -> bool:
    """Whether this stream stays on one host, and can carry descriptors."""
    return bool(writer.get_extra_info("socket").family == socket.AF_UNIX)


async def _greeting(reader: asyncio.StreamReader, endpoint: Endpoint) -> Welcome:
    frame = await protocol.read_frame(reader, protocol.MAX_GREETING_BYTES)
    if isinstance(frame, Refused):
        raise PeerUnreachable(f"{endpoint} refused: {frame.code}: {frame.message}")
    if not isinstance(frame, Welcome):
        raise PeerUnreachable(f"{endpoint} closed before it greeted" if frame is None else f"{endpoint}: no greeting")
    return frame


def _abandon(writer: asyncio.StreamWriter, source: RemoteArena | None) -> None:
    writer.transport.abort()
    if source is not None:
        source.close()
