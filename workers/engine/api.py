"""The engine as the worker process sees it. Everything here is called on the engine's own thread.

`workers.serve` owns the thread: it drains its queue of commands (submit, cancel, grant, ...), calls `step()` while
`has_work()`, and turns the `StepOutput` into frames. The engine knows nothing of sockets; the transfer knows nothing of
models. Three ways through, one scheduler:

- role both: `submit(request)`, then deltas until one carries `finish`.
- prefill:   `submit(request, hold=True)`; when it could start, its id appears in `StepOutput.wants_credit` (once); it
  starts after `grant(id)`. `defer(id, until)` takes its turn away, because the other side has no room or does not
  answer: it is asked for again when it could start after that time, and whoever is behind it comes first. Finished
  blocks appear in `StepOutput.blocks`, at the end one `Prefilled`. The blocks stay pinned until `release(id)` (or
  `cancel(id)` while nothing is being copied).
- decode:    `reserve(request)` sets aside room for prompt and output and says which blocks are to be filled;
  `activate(id, first_token, sections)` once they are; where the first token was the last, one empty delta carries the
  `finish`. `cancel(id)` gives everything back, and forgets what was kept of a request that was refused room.

Every method is idempotent for ids it no longer knows.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from workers.constraints import Constraint
from workers.protocol import ErrorCode, Finish, RequestId, Sampling, TokenDelta


@dataclass(slots=True, kw_only=True)
class EngineRequest:
    request_id: RequestId
    tokens: list[int]
    sampling: Sampling
    salt: bytes
    retention_class: str = "chat"
    priority: int = 0
    arrived: float
    """Monotonic seconds."""
    deadline: float
    """Monotonic seconds after which it is ended with `deadline_exceeded`."""
    constraint: Constraint | None = None
    """Progress through the grammar of `sampling`, where it names one."""


@dataclass(slots=True, kw_only=True)
class ScheduledEvent:
    """Emitted once per request, when its prefill starts: pool_hit + store_hit + miss == len(tokens)."""

    request_id: RequestId
    pool_hit_tokens: int
    store_hit_tokens: int
    miss_tokens: int
    recomputed_tokens: int
    queue_s: float


@dataclass(slots=True, kw_only=True)
class BlocksEvent:
    """Blocks [first, first + len(slots)) of a held request hold their final bytes (the last may be partly filled)."""

    request_id: RequestId
    first: int
    slots: list[int]
    generations: list[int]


@dataclass(slots=True, kw_only=True)
class Prefilled:
    """A held request's prompt is complete. `finish` is set where the first token ended it (no decode needed)."""

    request_id: RequestId
    first_token: int
    finish: Finish | None
    sections: list[tuple[str, int, bytes]]
    """(name, version, bytes) of every state section and window ring; empty for models without them."""
    prefill_s: float


@dataclass(slots=True, kw_only=True)
class FailedEvent:
    request_id: RequestId
    code: ErrorCode
    message: str
    """Whether another worker may do better follows from the code (`workers.protocol.is_retryable`)."""


@dataclass(slots=True)
class StepOutput:
    scheduled: list[ScheduledEvent] = field(default_factory=list)
    wants_credit: list[RequestId] = field(default_factory=list)
    blocks: list[BlocksEvent] = field(default_factory=list)
    deltas: list[TokenDelta] = field(default_factory=list)
    """Includes the first token of held requests (index 0)."""
    prefilled: list[Prefilled] = field(default_factory=list)
    failed: list[FailedEvent] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class Reservation:
    """Room on a decode worker: `slots[i]` is block i of the prompt; the first `have_blocks` are filled."""

    have_blocks: int
    slots: list[int]


@dataclass(slots=True, kw_only=True)
class EngineStats:
    running: int
    waiting: int
    waiting_tokens: int
    held: int
    """Prefilled, pinned until released."""
    blocks_total: int
    blocks_used: int
    blocks_cached: int
    steps: int
    computed_tokens: int
    preemptions: int
    rows_saved: tuple[int, ...] = ()
    """Rows of prompts that each layer was spared, because only the tail goes through it."""


class EngineBusy(Exception):
    """The waiting queue is at its bound; the request was not taken."""


class RequestRefused(Exception):
    """The request can never run here (context, ids outside the vocabulary). `code` says which."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code


class EngineApi(Protocol):
    """Implemented by `workers.engine.engine.Engine`."""

    def submit(self, request: EngineRequest, *, hold: bool = False) -> None:
        """Queue a request. Raises EngineBusy or RequestRefused."""

    def grant(self, request_id: RequestId) -> None: ...

    def defer(self, request_id: RequestId, until: float) -> None:
        """Not granted: back into the queue, without a turn before `until` (monotonic seconds; inf waits for the next
        `defer`, or for a `grant`). A request that has begun, or has credit, is left alone.
        """

    def release(self, request_id: RequestId) -> None: ...

    def reserve(self, request: EngineRequest) -> Reservation | None:
        """Set room aside, or None when there is none now. Raises EngineBusy or RequestRefused."""

    def activate(self, request_id: RequestId, first_token: int, sections: list[tuple[str, int, bytes]]) -> None:
        """The reserved blocks hold the prompt: decode from `first_token` (output index 0, not emitted again)."""

    def cancel(self, request_id: RequestId) -> None: ...

    def has_work(self) -> bool: ...

    def step(self) -> StepOutput:
        """One scheduling round and at most one forward pass. Never blocks on anything but computing."""

    def stats(self) -> EngineStats: ...

    def check_conservation(self) -> None:
        """Every block is free, cached, or referenced exactly as often as counted; else AssertionError."""
