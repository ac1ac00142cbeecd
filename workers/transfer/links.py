"""The decode side's connections: one per prefill worker (and epoch), dialled on first need, closed when silent.

A failure is never remembered (lesson 17): the requests that waited for the link fail, the next one dials again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass, field

from workers import protocol
from workers.protocol import (
    Abort,
    Address,
    BlocksReady,
    Endpoint,
    Frame,
    Hello,
    PeerKind,
    Ping,
    Pong,
    RequestId,
    Reserve,
    StateReady,
    StateSectionPart,
    Welcome,
    WorkerState,
)
from workers.transfer.base import BlockSource, Dial, PeerUnreachable, TransferError
from workers.transfer.deadlines import Deadlines
from workers.transfer.puller import Puller

logger = logging.getLogger(__name__)

OUTBOX_BYTES = 4 * 1024 * 1024
"""Unsent bytes beyond which a prefill worker counts as lost: control frames are small."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """What both ends of a transfer must agree on (design section 7: only workers of one revision exchange blocks)."""

    revision: str
    block_identity: str
    block_bytes: int

    def check(self, welcome: Welcome, source: BlockSource) -> None:
        """Raises PeerUnreachable where the blocks there mean something else than here."""
        if welcome.state is WorkerState.LOADING:
            raise PeerUnreachable(f"{welcome.address} is still loading")
        for name, theirs, ours in (
            ("revision", welcome.revision, self.revision),
            ("block identity", welcome.block_identity, self.block_identity),
            ("bytes per block", source.block_bytes, self.block_bytes),
        ):
            if theirs != ours:
                raise PeerUnreachable(f"{welcome.address} differs in {name}: {theirs} there, {ours} here")


@dataclass(slots=True, eq=False)
class Link:
    """One connection to a prefill worker."""

    address: Address
    writer: asyncio.StreamWriter
    source: BlockSource
    heard_at: float

    def send(self, frame: Frame) -> None:
        if self.writer.is_closing():
            return
        self.writer.write(protocol.encode(frame))
        if self.writer.transport.get_write_buffer_size() > OUTBOX_BYTES:
            self.writer.transport.abort()


@dataclass(slots=True)
class Links:
    address: Address
    dial: Dial
    expected: Expected
    puller: Puller
    deadlines: Deadlines
    _links: dict[Address, Link] = field(default_factory=dict)
    _waiting: dict[Address, list[RequestId]] = field(default_factory=dict)
    """Requests for a prefill worker that is being dialled."""
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    def connect(self, request_id: RequestId, prefill: Address, endpoint: Endpoint) -> None:
        """Attach the pull to the link of its prefill worker, dialling it where there is none."""
        link = self._links.get(prefill)
        if link is not None:
            self.puller.attach(request_id, link, link.source, prefill.epoch)
        elif prefill in self._waiting:
            self._waiting[prefill].append(request_id)
        else:
            self._waiting[prefill] = [request_id]
            task = asyncio.get_running_loop().create_task(self._run(prefill, endpoint))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def gauges(self) -> dict[str, float]:
        now = time.monotonic()
        return {
            "link.open": float(len(self._links)),
            "link.dialling": float(len(self._waiting)),
            "link.silence_s": max((now - link.heard_at for link in self._links.values()), default=0.0),
        }

    async def close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _run(self, prefill: Address, endpoint: Endpoint) -> None:
        """The life of one link."""
        hello = Hello(peer=str(self.address), kind=PeerKind.WORKER, expect=prefill)
        try:
            async with asyncio.timeout(self.deadlines.connect_s + self.deadlines.greeting_s):
                dialled = await self.dial(endpoint, hello)
        except TimeoutError:
            self._unreachable(prefill, PeerUnreachable(f"{prefill} at {endpoint} did not greet in time"))
            return
        except TransferError as error:
            self._unreachable(prefill, error)
            return
        except Exception as error:  # whatever it was, those that wait must hear of it and the next one dial again
            logger.exception("dialling %s failed", prefill)
            self._unreachable(prefill, PeerUnreachable(f"{prefill} at {endpoint}: {error}"))
            return
        try:
            self.expected.check(dialled.welcome, dialled.source)
        except PeerUnreachable as error:
            dialled.writer.close()
            dialled.source.close()
            self._unreachable(prefill, error)
            return
        link = Link(prefill, dialled.writer, dialled.source, time.monotonic())
        self._links[prefill] = link
        for request_id in self._waiting.pop(prefill, []):
            self.puller.attach(request_id, link, link.source, prefill.epoch)
        pings = asyncio.get_running_loop().create_task(self._ping(link))
        try:
            await self._read(link, dialled.reader)
        except (OSError, protocol.ProtocolError) as error:
            logger.warning("link to %s broke: %s", prefill, error)
        finally:
            pings.cancel()
            del self._links[prefill]
            link.writer.close()
            self.puller.link_closed(link)
            link.source.close()

    def _unreachable(self, prefill: Address, error: TransferError) -> None:
        logger.warning("prefill worker %s is unreachable: %s", prefill, error)
        for request_id in self._waiting.pop(prefill, []):
            self.puller.unreachable(request_id, error)

    async def _read(self, link: Link, reader: asyncio.StreamReader) -> None:
        while (frame := await protocol.read_frame(reader)) is not None:
            link.heard_at = time.monotonic()
            match frame:
                case Pong():
                    pass
                case Reserve():
                    self.puller.reserve(link, frame)
                case BlocksReady():
                    self.puller.blocks_ready(link, frame)
                case StateSectionPart():
                    self.puller.section_part(link, frame)
                case StateReady():
                    self.puller.state_ready(link, frame)
                case Abort():
                    self.puller.aborted(link, frame)
                case _:
                    raise protocol.ProtocolError(f"a prefill worker may not send {type(frame).__name__}")

    async def _ping(self, link: Link) -> None:
        """A stopped process keeps its connection open: silence is what gives it away."""
        nonce = 0
        while not link.writer.is_closing():
            if time.monotonic() - link.heard_at > self.deadlines.link_silence_s:
                logger.warning("prefill worker %s is silent, closing the link", link.address)
                link.writer.transport.abort()
                return
            nonce += 1
            link.send(Ping(nonce))
            await asyncio.sleep(self.deadlines.link_ping_s)
