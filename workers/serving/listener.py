"""The worker's socket: who connects, what each kind of peer may send, and what goes out to all of them."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path

from workers import protocol
from workers.network.endpoints import parse_endpoint
from workers.network.security import InsecureLink
from workers.network.server import TcpServer
from workers.network.tls import Contexts
from workers.protocol import (
    Abort,
    Address,
    Cancel,
    Credit,
    Decode,
    Drain,
    ErrorCode,
    Frame,
    NoCredit,
    PeerKind,
    Ping,
    Pong,
    Prefill,
    ProtocolError,
    Refused,
    Release,
    Status,
    Subscribe,
    Welcome,
)
from workers.serving.connection import Connection, read_hello
from workers.serving.desk import Desk
from workers.serving.errors import BadSpec
from workers.spec import WorkerSpec
from workers.transfer.base import ArenaLike, Offered, TransferError, Transport
from workers.transfer.deadlines import Deadlines
from workers.transfer.tcp.owner import BlockOwner

logger = logging.getLogger(__name__)

MAX_CONNECTIONS = 256


class Listener:
    def __init__(
        self,
        spec: WorkerSpec,
        deadlines: Deadlines,
        desk: Desk,
        transport: Transport,
        blocks: BlockOwner,
        contexts: Contexts,
        welcome: Callable[[], Welcome],
        status: Callable[[], Status],
    ) -> None:
        self.arena: ArenaLike | None = None
        """Of the loaded engine: until then decode workers are turned away."""
        self.on_drain: Callable[[float], None] = lambda deadline_s: None
        self._spec = spec
        self._deadlines = deadlines
        self._desk = desk
        self._transport = transport
        self._welcome = welcome
        self._status = status
        self._blocks, self._contexts = blocks, contexts
        self._connections: set[Connection] = set()
        self._unix: asyncio.Server | None = None
        self._tcp: TcpServer | None = None

    async def start(self) -> None:
        """Raises BadSpec for an endpoint that cannot be or may not be, OSError for one that cannot be bound."""
        try:
            endpoints = {parse_endpoint(one): one for one in (self._spec.endpoint, self._spec.network.local) if one}
        except ValueError as error:
            raise BadSpec(str(error)) from error
        for (scheme, address), endpoint in endpoints.items():
            if scheme == "tcp":
                self._start_tcp(self._spec.network.listen or endpoint)
            else:
                await self._start_unix(Path(address))

    async def _start_unix(self, path: Path) -> None:
        _make_way(path)
        previous = os.umask(0o177)
        try:
            self._unix = await asyncio.start_unix_server(self._accept, path)
        finally:
            os.umask(previous)

    def _start_tcp(self, listen: str) -> None:
        server = TcpServer(
            listen=listen,
            advertised=self._spec.endpoint,
            security=self._spec.network.security,
            contexts=self._contexts,
            greeting_s=self._deadlines.greeting_s,
            on_frames=self._accept,
            on_blocks=self._blocks.serve,
        )
        try:
            server.start()
        except (InsecureLink, ValueError) as error:
            raise BadSpec(f"{self._spec.endpoint}: {error}") from error
        self._tcp = server

    async def close(self, deadline_s: float) -> None:
        """Stop listening; let buffered frames out until the deadline."""
        for server in (self._unix, self._tcp):
            if server is not None:
                server.close()
        open_connections = list(self._connections)
        for connection in open_connections:
            connection.writer.close()  # sends what is buffered first
        try:
            async with asyncio.timeout(deadline_s):
                await asyncio.gather(*(c.writer.wait_closed() for c in open_connections), return_exceptions=True)
        except TimeoutError:
            logger.warning("some peers did not take their last frames")

    def announce(self) -> None:
        """The status, to gateways and agents."""
        status = self._status()
        for connection in list(self._connections):
            if connection.hello.kind is not PeerKind.WORKER:
                connection.send(status)

    def sweep(self) -> None:
        """Decode workers ping: one that is silent is stopped or gone, and must not keep blocks pinned."""
        oldest = time.monotonic() - self._deadlines.link_silence_s
        for connection in list(self._connections):
            if connection.hello.kind is PeerKind.WORKER and connection.heard_at < oldest:
                logger.warning("a decode worker is silent", extra={"fields": {"peer": connection.hello.peer}})
                connection.writer.transport.abort()

    def gauges(self) -> dict[str, float]:
        return {
            "connections": float(len(self._connections)),
            "connections.blocks": float(self._blocks.connections),
            "connections.refused": float((self._tcp.refused if self._tcp is not None else 0) + self._blocks.refused),
            "queue.outbox_bytes": float(max((c.unsent_bytes for c in self._connections), default=0)),
        }

    # --- one connection --------------------------------------------------------------------------------------

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            hello = await read_hello(reader, self._spec, self._deadlines.greeting_s)
            if isinstance(hello, protocol.Hello) and len(self._connections) >= MAX_CONNECTIONS:
                hello = Refused(code=ErrorCode.QUEUE_FULL, message=f"{MAX_CONNECTIONS} connections are open")
            if isinstance(hello, Refused):
                writer.write(protocol.encode(hello))
            elif hello is not None:
                await self._serve(Connection(hello, writer), reader)
        except ProtocolError as error:
            logger.warning("a peer broke the protocol: %s", error)
        except TransferError as error:
            logger.warning("blocks could not be offered: %s", error)
        except TimeoutError:
            logger.warning("a decode worker did not take its greeting in time")
        except OSError as error:
            logger.info("a connection broke: %s", error)
        except asyncio.CancelledError:
            logger.debug("the process ends, and this connection with it")
        finally:
            writer.close()

    async def _serve(self, connection: Connection, reader: asyncio.StreamReader) -> None:
        kind, peer = connection.hello.kind, connection.hello.peer
        offered: Offered | None = None
        connection.send(self._welcome())
        if kind is PeerKind.WORKER:
            if self.arena is None or self._desk.transfer is None:
                return
            address = _address(peer)
            async with asyncio.timeout(self._deadlines.greeting_s):  # a peer that does not read its greeting
                offered = await self._transport.offer(connection.writer, self.arena, address)
            self._desk.transfer.holder.link_opened(connection, address)
        else:
            connection.send(self._status())
        self._connections.add(connection)
        logger.info("connected", extra={"fields": {"peer": peer, "kind": kind}})
        try:
            while (frame := await protocol.read_frame(reader)) is not None:
                connection.heard_at = time.monotonic()
                self._dispatch(connection, frame)
        finally:
            if offered is not None:
                offered.withdraw()
            self._connections.discard(connection)
            self._desk.counters.events["peers_dropped"] += connection.overflowed
            if kind is PeerKind.WORKER and self._desk.transfer is not None:
                self._desk.transfer.holder.link_closed(connection)
            self._desk.connection_closed(connection)
            logger.info("disconnected", extra={"fields": {"peer": peer, "kind": kind}})

    def _dispatch(self, connection: Connection, frame: Frame) -> None:
        """Raises ProtocolError for what this kind of peer may not send: its connection ends."""
        transfer = self._desk.transfer
        match connection.hello.kind, frame:
            case _, Ping(nonce=nonce):
                connection.send(Pong(nonce))
            case PeerKind.GATEWAY, Prefill():
                self._desk.prefill(connection, frame)
            case PeerKind.GATEWAY, Decode():
                self._desk.decode(connection, frame)
            case PeerKind.GATEWAY, Cancel():
                self._desk.cancel(connection, frame)
            case PeerKind.AGENT, Drain(deadline_s=deadline_s) if deadline_s >= 0:  # no NaN, which is no time
                self.on_drain(deadline_s)
            case PeerKind.WORKER, Subscribe() if frame.epoch != self._spec.address.epoch:
                message = f"here is {self._spec.address}"
                connection.send(Abort(request_id=frame.request_id, code=ErrorCode.STALE_EPOCH, message=message))
            case PeerKind.WORKER, Subscribe() if transfer is not None:
                transfer.holder.subscribed(connection, frame)
            case PeerKind.WORKER, Credit() if transfer is not None:
                transfer.holder.credited(connection, frame)
            case PeerKind.WORKER, NoCredit() if transfer is not None:
                transfer.holder.not_credited(connection, frame)
            case PeerKind.WORKER, Release() if transfer is not None:
                transfer.holder.released(connection, frame)
            case PeerKind.WORKER, Abort() if transfer is not None:
                transfer.holder.aborted(connection, frame)
            case kind, _:
                raise ProtocolError(f"a {kind} may not send {type(frame).__name__}")


def _make_way(path: Path) -> None:
    """For a socket: its folder, private, without what the process before left (the agent starts one at a time)."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    path.unlink(missing_ok=True)


def _address(text: str) -> Address:
    """Inverse of `str(Address)`. Raises ProtocolError."""
    worker, _, rest = text.rpartition("@")
    epoch, _, rank = rest.partition(".")
    if not worker or not epoch.isdigit() or not rank.isdigit():
        raise ProtocolError(f"{text!r} is no worker's address")
    return Address(worker=worker, epoch=int(epoch), rank=int(rank))
