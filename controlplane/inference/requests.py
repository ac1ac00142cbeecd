"""The life of one request at the workers: sent to a pair, put in order, cancelled on both sides, retried once."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from controlplane.inference.connection import CannotSend, Connection, Receiver
from controlplane.inference.events import Event, Lost, Output, RequestFailed, Restarted, WorkerEvent
from controlplane.inference.limits import GatewayLimits
from controlplane.inference.router import NoWorkers, Pair, Router
from workers.protocol import (
    Address,
    CacheScope,
    Decode,
    ErrorCode,
    Failed,
    Finish,
    Prefill,
    RequestId,
    Sampling,
    Scheduled,
    TokenDelta,
    is_retryable,
    pack_tokens,
)

log = logging.getLogger(__name__)

ATTEMPTS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What is asked of the workers, wherever it runs."""

    request_id: str
    deployment: str
    revision: str
    """Preferred; another revision serves where this one cannot."""
    tokens: list[int]
    sampling: Sampling
    cache: CacheScope
    deadline: float
    """Monotonic."""
    priority: int = 0


@dataclass(slots=True)
class _Attempt:
    """One try on one pair. Its worker-side id differs from try to try: frames of an old one cannot be mistaken."""

    request_id: RequestId
    pair: Pair
    next_index: int = 0
    early: dict[int, TokenDelta] = field(default_factory=dict)
    """Deltas whose predecessors have not come, by index (prefill and decode are two connections)."""
    scheduled: bool = False

    def past_prefill(self, source: Connection) -> bool:
        """Whether `source` has done its part: decode pulled everything before its own first token, index 1."""
        return self.pair.decode is not None and source is self.pair.prefill and self.next_index > 1


class Generation:
    """Feeds on frames, gives out events in order. Not a task: frames push it, `poll` drains it, `close` ends it.

    `keep_restartable`: the caller sends nothing before the end, so a failure may still be retried after tokens came.
    `wake` is set whenever there is something to poll; several generations may share one.
    """

    def __init__(
        self, work: Work, *, router: Router, limits: GatewayLimits, wake: asyncio.Event, keep_restartable: bool
    ) -> None:
        self.work = work
        self._router = router
        self._limits = limits
        self._wake = wake
        self._keep_restartable = keep_restartable
        self._events: deque[Event] = deque()
        self._attempt: _Attempt | None = None
        self._attempts = 0
        self._output_started = False
        self.done = False
        self.revision = work.revision
        """Of the pair that serves."""

    # --- for the consumer ----------------------------------------------------------------------------------------

    def start(self, *, avoid: Sequence[frozenset[Address]] = (frozenset(),)) -> None:
        """Send to a pair, keeping off one of the sets in `avoid`, the first if possible. Raises NoWorkers."""
        while True:
            pair = self._pick(avoid)
            try:
                return self._submit(pair)
            except CannotSend as error:
                # Not usable any more, so the router will not name it again.
                log.info("request %s: %s", self.work.request_id, error)

    def _pick(self, avoid: Sequence[frozenset[Address]]) -> Pair:
        refusal = NoWorkers("no pair is left")
        for excluded in avoid:
            try:
                return self._router.pick(
                    deployment=self.work.deployment,
                    revision=self.work.revision,
                    tokens=self.work.tokens,
                    salt=self.work.cache.salt,
                    exclude=excluded,
                )
            except NoWorkers as error:
                refusal = error
        raise refusal

    def poll(self) -> Event | None:
        """The next event, or None where nothing has come. A RequestFailed is returned, not raised, and is the last."""
        return self._events.popleft() if self._events else None

    def close(self, reason: str) -> None:
        """Idempotent. What still runs is cancelled on both sides; nothing more is given out."""
        attempt, self._attempt = self._attempt, None
        self._events.clear()
        self.done = True
        if attempt is not None:
            for connection in _connections(attempt.pair):
                connection.cancel(attempt.request_id, reason)

    # --- frames --------------------------------------------------------------------------------------------------

    def _submit(self, pair: Pair) -> None:
        self._attempts += 1
        suffix = "" if self._attempts == 1 else f".retry{self._attempts - 1}"
        attempt = _Attempt(RequestId(self.work.request_id + suffix), pair)
        tokens = pack_tokens(self.work.tokens)
        deadline_s = max(self.work.deadline - time.monotonic(), 0.001)
        work, prefill, decode = self.work, pair.prefill, pair.decode

        def receiver(source: Connection) -> Receiver:
            return lambda event: self._receive(attempt, source, event)

        if decode is not None:
            decode.submit(
                Decode(
                    request_id=attempt.request_id,
                    epoch=decode.address.epoch,
                    tokens=tokens,
                    sampling=work.sampling,
                    cache=work.cache,
                    prefill=prefill.address,
                    prefill_endpoint=prefill.lease.endpoint,
                    priority=work.priority,
                    deadline_s=deadline_s,
                ),
                receiver(decode),
            )
        try:
            prefill.submit(
                Prefill(
                    request_id=attempt.request_id,
                    epoch=prefill.address.epoch,
                    tokens=tokens,
                    sampling=work.sampling,
                    cache=work.cache,
                    decode=decode.address if decode else None,
                    priority=work.priority,
                    deadline_s=deadline_s,
                ),
                receiver(prefill),
            )
        except CannotSend:
            if decode is not None:
                decode.cancel(attempt.request_id, "prefill could not be reached")
            raise
        self._attempt = attempt
        self.revision = pair.revision

    def _receive(self, attempt: _Attempt, source: Connection, event: WorkerEvent) -> None:
        if attempt is not self._attempt:
            return  # of a try that was given up
        match event:
            case Failed() | Lost() if attempt.past_prefill(source):
                log.info("request %s goes on at decode without its prefill worker: %s", attempt.request_id, event)
            case Scheduled():
                if not attempt.scheduled:
                    attempt.scheduled = True
                    self._emit(event)
            case TokenDelta():
                attempt.early[event.index] = event
                self._release_in_order(attempt, source)
            case Failed(code=code, message=message, retryable=retryable):
                self._failed(attempt, source, code, message, retryable or is_retryable(code))
            case Lost(address=address, reason=reason):
                self._failed(attempt, source, ErrorCode.PEER_LOST, f"{address}: {reason}", True)

    def _release_in_order(self, attempt: _Attempt, source: Connection) -> None:
        while (delta := attempt.early.pop(attempt.next_index, None)) is not None:
            attempt.next_index += len(delta.tokens)
            if delta.finish is Finish.CANCELLED:
                # We did not cancel it: the worker stopped (a drain that was cut short).
                return self._failed(attempt, source, ErrorCode.PEER_LOST, "the worker gave the request up", True)
            self._output_started = True
            self._emit(Output(delta.tokens, delta.finish, delta.logprobs))
            if delta.finish is not None:
                return self._finished(attempt)
        return None

    def _finished(self, attempt: _Attempt) -> None:
        """Prefill may have finished it with the first token: then decode still waits, and is told."""
        if attempt.pair.decode is not None and attempt.next_index <= 1:
            attempt.pair.decode.cancel(attempt.request_id, "finished with the first token")
        for connection in _connections(attempt.pair):
            connection.forget(attempt.request_id)
        self._attempt = None
        self.done = True

    def _failed(self, attempt: _Attempt, source: Connection, code: ErrorCode, message: str, retryable: bool) -> None:
        pair = _connections(attempt.pair)
        for connection in pair:
            connection.cancel(attempt.request_id, f"failed: {code}")
        self._attempt = None
        where = " and ".join(map(str, attempt.pair.addresses()))
        log.warning("request %s on %s failed: %s (%s)", attempt.request_id, where, code, message)
        may_restart = self._keep_restartable or not self._output_started
        if retryable and may_restart and self._attempts < ATTEMPTS and time.monotonic() < self.work.deadline:
            try:
                # Elsewhere altogether if possible, else without the one that reported it, else without its peer.
                both = frozenset(connection.address for connection in pair)
                self.start(avoid=(both, frozenset({source.address}), both - {source.address}))
                self._output_started = False
                return self._emit(Restarted())
            except NoWorkers:
                log.info("request %s: no other workers to retry on", self.work.request_id)
        self.done = True
        self._emit(RequestFailed(code, message))
        return None

    def _emit(self, event: Event) -> None:
        if len(self._events) >= self._limits.inbox_events:
            self.close("the client does not read")
            self._events.append(RequestFailed(ErrorCode.INTERNAL, "the client does not read"))
        else:
            self._events.append(event)
        self._wake.set()


def _connections(pair: Pair) -> list[Connection]:
    return [pair.prefill] if pair.decode is None else [pair.prefill, pair.decode]
