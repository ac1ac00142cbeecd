"""What gateways ask of this worker and what the engine answers: admission, cancels, a frame per connection and step."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from workers import protocol
from workers.constraints import Grammars
from workers.engine.api import EngineBusy, EngineRequest, FailedEvent, RequestRefused, ScheduledEvent, StepOutput
from workers.protocol import (
    Cancel,
    Decode,
    ErrorCode,
    Finish,
    Prefill,
    RequestId,
    Role,
    Scheduled,
    TokenDelta,
    Tokens,
    WorkerState,
)
from workers.serving.connection import Connection
from workers.serving.counters import Counters
from workers.serving.engine_thread import EngineThread
from workers.serving.requests import HANDED_OVER, Live, Requests, Way, refusal
from workers.serving.validation import fault
from workers.spec import WorkerSpec
from workers.transfer.holder import Holder
from workers.transfer.links import Links
from workers.transfer.puller import Puller

logger = logging.getLogger(__name__)

DEADLINE_GRACE_S = 2.0
"""The engine and the transfer end requests at their deadline; this much later the desk does it itself."""
MAX_DEADLINE_S = 24 * 3600.0


@dataclass(slots=True)
class Transfer:
    """Both sides of the transfer; made when the engine is loaded."""

    holder: Holder
    puller: Puller
    links: Links

    def sweep(self) -> None:
        self.holder.sweep()
        self.puller.sweep()

    @property
    def transfers(self) -> int:
        return self.holder.transfers + self.puller.transfers

    def gauges(self) -> dict[str, float]:
        return self.holder.gauges() | self.puller.gauges() | self.links.gauges()


@dataclass(slots=True)
class Desk:
    spec: WorkerSpec
    engine: EngineThread
    requests: Requests
    counters: Counters
    state: Callable[[], WorkerState]
    grammars: Grammars
    transfer: Transfer | None = None
    _refusals: dict[RequestId, int] = field(default_factory=dict)

    # --- from gateways ---------------------------------------------------------------------------------------

    def prefill(self, connection: Connection, frame: Prefill) -> None:
        request = self._admit(connection, frame)
        if request is None or self.transfer is None:
            return
        decode = frame.decode
        if decode == self.spec.address and self.spec.role is Role.BOTH:
            decode = None
        if self.spec.role is Role.DECODE:
            self._refuse(connection, frame, ErrorCode.INVALID, "this worker decodes only")
        elif decode is not None:
            self._enlist(connection, request, Way.HOLD)
            self.transfer.holder.add(frame.request_id, decode)
            self._submit(request, hold=True)
        elif self.spec.role is Role.PREFILL and frame.sampling.max_tokens != 1:
            self._refuse(connection, frame, ErrorCode.INVALID, "a prefill worker needs a decode worker to go on")
        else:
            self._enlist(connection, request, Way.LOCAL)
            self._submit(request, hold=False)

    def decode(self, connection: Connection, frame: Decode) -> None:
        request = self._admit(connection, frame)
        if request is None or self.transfer is None:
            return
        if self.spec.role is Role.PREFILL:
            self._refuse(connection, frame, ErrorCode.INVALID, "this worker prefills only")
            return
        self._enlist(connection, request, Way.PULL)
        self.transfer.puller.add(request)
        self.transfer.links.connect(frame.request_id, frame.prefill, frame.prefill_endpoint)

    def cancel(self, connection: Connection, frame: Cancel) -> None:
        entry = self.requests.live.get(frame.request_id)
        if entry is not None and entry.connection is connection:
            self._cancel(entry)

    def connection_closed(self, connection: Connection) -> None:
        """Nobody listens any more: everything it asked for ends, in whatever phase."""
        for request_id in list(connection.requests):
            self._cancel(self.requests.live[request_id])

    # --- from the engine -------------------------------------------------------------------------------------

    def output(self, output: StepOutput) -> None:
        assert self.transfer is not None
        for scheduled in output.scheduled:
            self._scheduled(scheduled)
        for request_id in output.wants_credit:
            self.transfer.holder.wants_credit(request_id)
        frames: dict[Connection, list[TokenDelta]] = {}
        for delta in output.deltas:
            self._delta(delta, frames)
        for connection, deltas in frames.items():
            connection.send(Tokens(deltas=deltas))
        for blocks in output.blocks:
            self.transfer.holder.blocks_ready(blocks)
        for prefilled in output.prefilled:
            self.counters.prefill_s.observe(prefilled.prefill_s)
            self.transfer.holder.prefilled(prefilled)
        for failed in output.failed:
            self._failed(failed)

    # --- from the transfer (RequestOwner) --------------------------------------------------------------------

    def transfer_failed(self, request_id: RequestId, code: ErrorCode, message: str) -> None:
        self.requests.fail(request_id, code, message)

    def transfer_done(self, request_id: RequestId, *, seconds: float, ended: bool) -> None:
        entry = self.requests.live.get(request_id)
        if entry is None:
            return
        if entry.way is Way.PULL:
            self.counters.transfer_s.observe(seconds)
            entry.way = Way.DECODE
        if ended:
            self.requests.end(request_id, HANDED_OVER)

    # --- deadlines and the end -------------------------------------------------------------------------------

    def sweep(self) -> None:
        late = time.monotonic() - DEADLINE_GRACE_S
        for entry in [entry for entry in self.requests.live.values() if entry.deadline < late]:
            self.counters.events["late_deadlines"] += 1
            self.cut(entry, ErrorCode.DEADLINE, "the request's deadline passed")

    def cut(self, entry: Live, code: ErrorCode, message: str) -> None:
        """Answer the gateway now, whatever engine and transfer are doing, and have them let go."""
        self.requests.fail(entry.request_id, code, message)
        self._let_go(entry)

    # --- inside ----------------------------------------------------------------------------------------------

    def _admit(self, connection: Connection, frame: Prefill | Decode) -> EngineRequest | None:
        """The request as the engine takes it, or None after a refusal."""
        if frame.epoch != self.spec.address.epoch:
            self._refuse(connection, frame, ErrorCode.STALE_EPOCH, f"here is {self.spec.address}")
        elif (state := self.state()) is not WorkerState.READY:
            self._refuse(connection, frame, ErrorCode.NOT_READY, f"this worker is {state}")
        elif frame.request_id in self.requests.live:
            self._refuse(connection, frame, ErrorCode.INVALID, "a request of this id is running")
        elif self.requests.full:
            self._refuse(connection, frame, ErrorCode.QUEUE_FULL, f"{self.requests.bound} requests are here already")
        elif (message := fault(frame)) is not None:
            self._refuse(connection, frame, ErrorCode.INVALID, message)
        else:
            try:
                tokens = protocol.unpack_tokens(frame.tokens)
            except protocol.ProtocolError as error:
                self._refuse(connection, frame, ErrorCode.INVALID, str(error))
                return None
            now = time.monotonic()
            return EngineRequest(
                request_id=frame.request_id,
                tokens=tokens,
                sampling=frame.sampling,
                salt=frame.cache.salt,
                retention_class=frame.cache.retention_class,
                priority=frame.priority,
                arrived=now,
                deadline=now + min(max(frame.deadline_s, 0.0), MAX_DEADLINE_S),
                constraint=self.grammars.constraint(grammar) if (grammar := frame.sampling.grammar) else None,
            )
        return None

    def _refuse(self, connection: Connection, frame: Prefill | Decode, code: ErrorCode, message: str) -> None:
        self.counters.finished[code.value] += 1
        connection.send(refusal(frame.request_id, code, message))

    def _enlist(self, connection: Connection, request: EngineRequest, way: Way) -> None:
        self.requests.add(
            Live(
                request_id=request.request_id,
                connection=connection,
                way=way,
                arrived=request.arrived,
                deadline=request.deadline,
                prompt_tokens=len(request.tokens),
            )
        )

    def _submit(self, request: EngineRequest, *, hold: bool) -> None:
        future = self.engine.call(lambda engine: engine.submit(request, hold=hold))
        future.add_done_callback(lambda done: self._submitted(request.request_id, done))

    def _submitted(self, request_id: RequestId, done: asyncio.Future[None]) -> None:
        if done.cancelled() or (error := done.exception()) is None:
            return
        if isinstance(error, EngineBusy):
            code = ErrorCode.QUEUE_FULL
        elif isinstance(error, RequestRefused):
            code = error.code
        else:
            code = ErrorCode.INTERNAL
            logger.error("submit failed", exc_info=error)
        self._failed(FailedEvent(request_id=request_id, code=code, message=str(error)))

    def _scheduled(self, event: ScheduledEvent) -> None:
        """Hits and misses are counted here and nowhere else: once per request, when its prefill starts."""
        hit = event.pool_hit_tokens + event.store_hit_tokens
        self.counters.scheduled(event)
        entry = self.requests.live.get(event.request_id)
        if entry is None:
            return
        entry.scheduled_at = time.monotonic()
        entry.hit_tokens = hit
        entry.store_hit_tokens = event.store_hit_tokens
        entry.connection.send(
            Scheduled(
                request_id=event.request_id,
                pool_hit_tokens=event.pool_hit_tokens,
                store_hit_tokens=event.store_hit_tokens,
                miss_tokens=event.miss_tokens,
                recomputed_tokens=event.recomputed_tokens,
                queue_s=event.queue_s,
            )
        )

    def _delta(self, delta: TokenDelta, frames: dict[Connection, list[TokenDelta]]) -> None:
        entry = self.requests.live.get(delta.request_id)
        if entry is None or entry.cancelled:
            return  # cancelled while the step ran: dropped, not sent, not billed
        if entry.way is Way.LOCAL and delta.index == 0 and entry.scheduled_at is not None:
            self.counters.prefill_s.observe(time.monotonic() - entry.scheduled_at)
        entry.output_tokens += len(delta.tokens)
        self.counters.output_tokens += len(delta.tokens)
        frames.setdefault(entry.connection, []).append(delta)
        # A held request is done for its gateway, but not for us: its decode worker has yet to let go.
        if delta.finish is not None and entry.way is not Way.HOLD:
            self.requests.end(delta.request_id, delta.finish.value)

    def _failed(self, event: FailedEvent) -> None:
        assert self.transfer is not None
        self.requests.fail(event.request_id, event.code, event.message)
        self.transfer.holder.engine_failed(event.request_id, event.code, event.message)

    def _cancel(self, entry: Live) -> None:
        entry.cancelled = True
        if entry.way in (Way.LOCAL, Way.DECODE):
            self.requests.end(entry.request_id, Finish.CANCELLED.value)
        self._let_go(entry)

    def _let_go(self, entry: Live) -> None:
        """Phase dependent: the transfer decides for itself when memory may be freed."""
        request_id = entry.request_id
        if entry.way is Way.HOLD and self.transfer is not None:
            self.transfer.holder.cancel(request_id)
        elif entry.way is Way.PULL and self.transfer is not None:
            self.transfer.puller.cancel(request_id)
        else:
            self.engine.post(lambda engine: engine.cancel(request_id))
