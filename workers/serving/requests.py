"""The requests that live on this worker: whose they are, which way they go, and how they end. Event loop only."""

from __future__ import annotations

import asyncio
import enum
import logging
import time
from collections import deque
from dataclasses import dataclass, field

from workers.protocol import Address, ErrorCode, Failed, Finish, RequestId, is_retryable
from workers.records import RequestRecord
from workers.serving.connection import Connection
from workers.serving.counters import Counters

logger = logging.getLogger(__name__)

ENDED_BOUND = 20_000
HANDED_OVER = "handed_over"
"""How a prefill worker counts a request that goes on elsewhere."""


class Way(enum.StrEnum):
    LOCAL = "local"
    """Prompt and output here (role both, or a single token)."""
    HOLD = "hold"
    """Prefill for a decode worker."""
    PULL = "pull"
    """Waits for, or copies, what a prefill worker computes."""
    DECODE = "decode"
    """Pulled and decoding."""


@dataclass(slots=True)
class Live:
    request_id: RequestId
    connection: Connection
    way: Way
    arrived: float
    deadline: float
    prompt_tokens: int
    scheduled_at: float | None = None
    hit_tokens: int = 0
    store_hit_tokens: int = 0
    """The part of the hits that came from the store."""
    output_tokens: int = 0
    cancelled: bool = False


@dataclass(slots=True, frozen=True)
class Ended:
    """How a request ended here, and when (Unix microseconds)."""

    entry: Live
    how: str
    ended_us: int

    def record(self, address: Address) -> RequestRecord:
        entry = self.entry
        ran = entry.scheduled_at is not None
        return RequestRecord(
            attempt_id=entry.request_id,
            worker=address.worker,
            epoch=address.epoch,
            way=entry.way.value,
            outcome=self.how,
            ended_us=self.ended_us,
            pool_hit_tokens=entry.hit_tokens - entry.store_hit_tokens,
            store_hit_tokens=entry.store_hit_tokens,
            miss_tokens=entry.prompt_tokens - entry.hit_tokens if ran else 0,
            output_tokens=entry.output_tokens,
        )


@dataclass(slots=True)
class Requests:
    """A bounded table; every request leaves it exactly once, through `end` or `fail`."""

    bound: int
    counters: Counters
    live: dict[RequestId, Live] = field(default_factory=dict)
    ended: deque[Ended] = field(default_factory=lambda: deque(maxlen=ENDED_BOUND))
    """What is still to be told of requests that ended; beyond the bound the oldest are forgotten."""
    empty: asyncio.Event = field(default_factory=asyncio.Event)
    """Set while there are none."""

    def __post_init__(self) -> None:
        self.empty.set()

    @property
    def full(self) -> bool:
        return len(self.live) >= self.bound

    def add(self, entry: Live) -> None:
        self.live[entry.request_id] = entry
        self.empty.clear()
        entry.connection.requests.add(entry.request_id)

    def end(self, request_id: RequestId, how: str) -> None:
        """It ended here as it should (or its gateway gave it up): nobody is told."""
        entry = self._pop(request_id)
        if entry is not None:
            self.counters.finished[how] += 1
            self.ended.append(Ended(entry, how, time.time_ns() // 1000))
            _log(entry, how, "")

    def fail(self, request_id: RequestId, code: ErrorCode, message: str) -> None:
        """It ended without a finish; its gateway is told, unless it was the gateway that gave it up."""
        entry = self._pop(request_id)
        if entry is None:
            return
        how = Finish.CANCELLED.value if entry.cancelled else code.value
        self.counters.finished[how] += 1
        self.ended.append(Ended(entry, how, time.time_ns() // 1000))
        if not entry.cancelled:
            entry.connection.send(refusal(request_id, code, message))
        _log(entry, how, message)

    def _pop(self, request_id: RequestId) -> Live | None:
        entry = self.live.pop(request_id, None)
        if entry is not None:
            entry.connection.requests.discard(request_id)
        if not self.live:
            self.empty.set()
        return entry


def refusal(request_id: RequestId, code: ErrorCode, message: str) -> Failed:
    return Failed(request_id=request_id, code=code, message=message, retryable=is_retryable(code))


def _log(entry: Live, how: str, message: str) -> None:
    logger.info(
        "request ended",
        extra={
            "fields": {
                "request_id": entry.request_id,
                "way": entry.way,
                "how": how,
                "message": message,
                "gateway": entry.connection.hello.peer,
                "prompt_tokens": entry.prompt_tokens,
                "hit_tokens": entry.hit_tokens,
                "output_tokens": entry.output_tokens,
                "seconds": round(time.monotonic() - entry.arrived, 4),
            }
        },
    )
