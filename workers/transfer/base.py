"""The interface of a transport: how a decode worker reaches a prefill worker's blocks.

Control frames (`Subscribe`, `Reserve`, `BlocksReady`, ...) are the same for every transport and travel on the link's
stream. A transport only decides how the bytes of a block get from the owner's arena to the puller: `shared_memory`
maps it, `tcp` asks for blocks on a second connection, one for RDMA would read from registered memory. In each the
*puller* moves the bytes: nobody ever writes into another's memory.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from workers.engine.api import EngineApi
from workers.protocol import Address, Endpoint, ErrorCode, Frame, Hello, RequestId, Welcome

T = TypeVar("T")


class TransferError(Exception):
    """A transfer cannot go on; `code` is what the request's gateway is told."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code


class PeerUnreachable(TransferError):
    """The prefill worker could not be reached, or is not the one that was meant. Nothing was transferred."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.PEER_LOST, message)


class StaleBlock(TransferError):
    """A block changed owner before its copy was complete: the copied bytes are worth nothing."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.TRANSFER, message)


class ArenaLike(Protocol):
    """What the transfer needs of an engine's arena (`workers.engine.arena.Arena`)."""

    @property
    def fd(self) -> int: ...

    @property
    def header_bytes(self) -> int: ...

    @property
    def blocks_total(self) -> int: ...

    @property
    def block_bytes(self) -> int: ...

    def block(self, slot: int) -> memoryview:
        """The writable bytes of one block."""

    def generation(self, slot: int) -> int: ...


class ServedEngine(EngineApi, Protocol):
    """The engine of a worker process: the API, and the memory behind it."""

    @property
    def arena(self) -> ArenaLike: ...


class EngineCalls(Protocol):
    """The way to the engine's thread, from the event loop."""

    def call(self, function: Callable[[ServedEngine], T]) -> asyncio.Future[T]:
        """Run `function` between two steps; the future gets its result or its exception."""

    def post(self, function: Callable[[ServedEngine], object]) -> None:
        """The same where nobody waits for the result; an exception is logged and counted."""


class RequestOwner(Protocol):
    """Who answers the gateway (`workers.serving.desk`): told of the end of every transfer, once per request."""

    def transfer_failed(self, request_id: RequestId, code: ErrorCode, message: str) -> None:
        """The request is over here. Its gateway is told, unless it gave the request up itself."""

    def transfer_done(self, request_id: RequestId, *, seconds: float, ended: bool) -> None:
        """Prefill: nothing is held any more. Decode: it decodes now, or (`ended`) the first token was the last."""


class FrameSink(Protocol):
    """One end of a link."""

    def send(self, frame: Frame) -> None:
        """Queue a frame; a link that cannot keep up is closed, never waited for."""


@dataclass(frozen=True, slots=True)
class Pull:
    """One block to copy: where it lies with its owner, under which generation, and where it goes."""

    slot: int
    generation: int
    destination: memoryview


class BlockSource(ABC):
    """A prefill worker's arena as seen from a decode worker."""

    block_bytes: int

    @abstractmethod
    async def read(self, request_id: RequestId, pulls: Sequence[Pull]) -> None:
        """Copy and then verify each block. Raises StaleBlock, PeerUnreachable or another TransferError; destinations
        hold rubbish then. `request_id` is whose they are: where reading is seen, the owner knows that it goes on.

        Never cancelled half-way: the caller frees the destinations only after this returned. A transport that waits for
        a network bounds that wait itself.
        """

    @abstractmethod
    def close(self) -> None: ...


@dataclass(slots=True)
class Dialled:
    """A link that greeted: its stream, the peer's greeting, and the way to its blocks."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    welcome: Welcome
    source: BlockSource


class Offered(ABC):
    """A peer's leave to read an arena."""

    @abstractmethod
    def withdraw(self) -> None:
        """The link ended. Returns at once; who still reads finds out."""


class Transport(ABC):
    """Both ends of one way of moving blocks."""

    @abstractmethod
    async def dial(self, endpoint: Endpoint, hello: Hello) -> Dialled:
        """Decode: connect, greet, open the block source. Raises PeerUnreachable. The caller bounds the time."""

    @abstractmethod
    async def offer(self, writer: asyncio.StreamWriter, arena: ArenaLike, peer: Address) -> Offered:
        """Prefill: the frame that lets the peer read `arena`; sent right after `Welcome`, before any other frame."""


Dial = Callable[[Endpoint, Hello], Awaitable[Dialled]]
