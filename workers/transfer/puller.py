"""The decode side: requests that wait for, or copy, what their prefill worker computes.

All of it runs on the event loop but for the copies (`BlockSource.read`) and the engine (`EngineCalls`). Nothing is held
while the prompt queues at the prefill worker; room is set aside when it sends `Reserve`.

A cancel is phase dependent: while a copy runs its destination must not be given to anybody else, so the pull is marked,
the copy completes, and only then the room goes back to the engine and the prefill worker hears `Abort`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any

from workers.engine.api import EngineBusy, EngineRequest, RequestRefused, Reservation
from workers.protocol import (
    Abort,
    BlocksReady,
    Credit,
    ErrorCode,
    NoCredit,
    Release,
    RequestId,
    Reserve,
    StateReady,
    StateSectionPart,
    Subscribe,
)
from workers.transfer.base import (
    ArenaLike,
    BlockSource,
    EngineCalls,
    FrameSink,
    Pull,
    RequestOwner,
    StaleBlock,
    TransferError,
)
from workers.transfer.deadlines import Deadlines
from workers.transfer.pull_state import Announced, PullCounters, PullPhase, PullState

logger = logging.getLogger(__name__)

BATCH_BYTES = 8 * 1024 * 1024
"""Bytes copied in one go: small enough that requests take turns on the copying thread."""


@dataclass(slots=True)
class Puller:
    engine: EngineCalls
    owner: RequestOwner
    deadlines: Deadlines
    arena: ArenaLike
    block_tokens: int
    pulls: dict[RequestId, PullState] = field(default_factory=dict)
    counters: PullCounters = field(default_factory=PullCounters)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    # --- from the gateway and the links ----------------------------------------------------------------------

    def add(self, request: EngineRequest) -> None:
        needed = -(-len(request.tokens) // self.block_tokens)
        self.pulls[request.request_id] = PullState(request, needed, until=request.deadline)

    def attach(self, request_id: RequestId, link: FrameSink, source: BlockSource, epoch: int) -> None:
        """The link to its prefill worker stands."""
        pull = self.pulls.get(request_id)
        if pull is None or pull.phase is not PullPhase.DIALLING:
            return
        pull.link, pull.source, pull.phase = link, source, PullPhase.QUEUED
        link.send(Subscribe(request_id=request_id, epoch=epoch))

    def unreachable(self, request_id: RequestId, error: TransferError) -> None:
        pull = self.pulls.get(request_id)
        if pull is not None:
            self._fail(pull, error.code, str(error))

    def cancel(self, request_id: RequestId) -> None:
        pull = self.pulls.get(request_id)
        if pull is not None:
            self._fail(pull, ErrorCode.CANCELLED, "cancelled by its gateway")

    def link_closed(self, link: FrameSink) -> None:
        """The prefill worker is gone. What it had announced completely is still copied where a mapping outlives it;
        over a network the copy fails.
        """
        for pull in [pull for pull in self.pulls.values() if pull.link is link]:
            if pull.state is None:
                self._fail(pull, ErrorCode.PEER_LOST, "the connection to the prefill worker was lost")

    # --- from the prefill worker -----------------------------------------------------------------------------

    def reserve(self, link: FrameSink, frame: Reserve) -> None:
        pull = self._of(link, frame.request_id)
        if pull is None:
            link.send(Abort(request_id=frame.request_id, code=ErrorCode.CANCELLED, message="no longer wanted"))
        elif pull.phase is PullPhase.QUEUED:
            pull.phase = PullPhase.RESERVING
            self._spawn(pull, self._reserve(pull, link))

    async def _reserve(self, pull: PullState, link: FrameSink) -> None:
        request = pull.request
        # On the engine's thread and of one piece with the cancel that follows a failure: both go through its queue.
        try:
            async with asyncio.timeout(self.deadlines.engine_s):
                reservation = await self.engine.call(lambda engine: engine.reserve(request))
        except EngineBusy as error:
            self._no_credit(pull, link, str(error))
        except RequestRefused as error:
            self._fail(pull, error.code, str(error))
        except TimeoutError:
            self._fail(pull, ErrorCode.INTERNAL, "the engine did not answer")
        else:
            if reservation is None:
                self._no_credit(pull, link, "no free blocks")
            elif pull.failure is None:  # else `_end` has given it back already
                self._credit(pull, link, reservation)

    def _no_credit(self, pull: PullState, link: FrameSink, reason: str) -> None:
        if pull.failure is None:
            pull.phase, pull.until = PullPhase.QUEUED, pull.request.deadline
            pull.refusals += 1
            wait = self.deadlines.retry_credit_after(pull.refusals)
            link.send(NoCredit(request_id=pull.request.request_id, reason=reason, retry_after_s=wait))

    def _credit(self, pull: PullState, link: FrameSink, reservation: Reservation) -> None:
        pull.reservation = reservation
        pull.phase = PullPhase.FILLING
        pull.filled.update(range(min(reservation.have_blocks, pull.blocks_needed)))
        self.counters.skipped_blocks += len(pull.filled)
        self._progress(pull)
        link.send(Credit(request_id=pull.request.request_id, have_blocks=reservation.have_blocks))

    def blocks_ready(self, link: FrameSink, frame: BlocksReady) -> None:
        pull = self._of(link, frame.request_id)
        if pull is None or pull.phase is not PullPhase.FILLING or pull.failure is not None:
            return
        last = frame.first + len(frame.slots)
        if len(frame.slots) != len(frame.generations) or frame.first < 0 or last > pull.blocks_needed:
            self._fail(pull, ErrorCode.TRANSFER, f"blocks up to {last} of {pull.blocks_needed} were announced")
            return
        self._progress(pull)
        for offset, (slot, generation) in enumerate(zip(frame.slots, frame.generations, strict=True)):
            if frame.first + offset not in pull.filled:
                pull.pending.append(Announced(frame.first + offset, slot, generation))
        self._advance(pull)

    def section_part(self, link: FrameSink, frame: StateSectionPart) -> None:
        pull = self._of(link, frame.request_id)
        if pull is None or pull.phase is not PullPhase.FILLING or pull.failure is not None:
            return
        self._progress(pull)
        try:
            pull.sections.add(frame)
        except TransferError as error:
            self._fail(pull, error.code, str(error))

    def state_ready(self, link: FrameSink, frame: StateReady) -> None:
        pull = self._of(link, frame.request_id)
        if pull is not None and pull.phase is PullPhase.FILLING and pull.failure is None:
            pull.state, pull.state_at = frame, time.monotonic()
            self._progress(pull)
            self._advance(pull)

    def aborted(self, link: FrameSink, frame: Abort) -> None:
        """Prefill gives up; it frees its blocks when it hears that nothing is being copied."""
        pull = self._of(link, frame.request_id)
        if pull is None:
            link.send(Release(request_id=frame.request_id))
        else:
            self._fail(pull, frame.code, frame.message)

    # --- deadlines -------------------------------------------------------------------------------------------

    def sweep(self) -> None:
        now = time.monotonic()
        for pull in [pull for pull in self.pulls.values() if pull.failure is None]:
            if pull.request.deadline <= now:
                self._fail(pull, ErrorCode.DEADLINE, f"the request's deadline passed while it was {pull.phase}")
            elif pull.until <= now:
                self._fail(pull, ErrorCode.PEER_LOST, f"no progress of the prefill worker while {pull.phase}")

    def gauges(self) -> dict[str, float]:
        counts = Counter(pull.phase for pull in self.pulls.values())
        copying = sum(pull.copying for pull in self.pulls.values())
        return {f"pull.{phase}": float(counts[phase]) for phase in PullPhase} | {"pull.copying": float(copying)}

    @property
    def waiting(self) -> int:
        return sum(pull.reservation is None for pull in self.pulls.values())

    @property
    def transfers(self) -> int:
        return sum(pull.reservation is not None for pull in self.pulls.values())

    # --- inside ----------------------------------------------------------------------------------------------

    def _of(self, link: FrameSink, request_id: RequestId) -> PullState | None:
        pull = self.pulls.get(request_id)
        return pull if pull is not None and pull.link is link else None

    def _progress(self, pull: PullState) -> None:
        pull.until = time.monotonic() + self.deadlines.progress_s

    def _advance(self, pull: PullState) -> None:
        """Copy what is announced; activate when everything is here; end a failed pull. Called after each event."""
        if pull.copying:
            return
        if pull.failure is not None:
            self._end(pull)
        elif pull.pending:
            pull.copying = True
            self._spawn(pull, self._copy(pull))
        elif pull.state is not None:
            if len(pull.filled) == pull.blocks_needed:
                self._activate(pull, pull.state)
            else:
                missing = pull.blocks_needed - len(pull.filled)
                self._fail(pull, ErrorCode.TRANSFER, f"prefill ended with {missing} blocks not announced")

    async def _copy(self, pull: PullState) -> None:
        assert pull.source is not None
        assert pull.reservation is not None
        slots, source = pull.reservation.slots, pull.source
        try:
            while pull.pending and pull.failure is None:
                count = max(1, BATCH_BYTES // source.block_bytes)
                batch = [pull.pending.popleft() for _ in range(min(count, len(pull.pending)))]
                blocks = [Pull(a.slot, a.generation, self.arena.block(slots[a.index])) for a in batch]
                await source.read(pull.request.request_id, blocks)
                pull.filled.update(announced.index for announced in batch)
                self.counters.transferred_blocks += len(batch)
        except TransferError as error:
            self.counters.stale_blocks += isinstance(error, StaleBlock)
            pull.copying = False
            if pull.failure is None:
                self._fail(pull, error.code, str(error))
            else:  # its link had closed, or it was cancelled: that has waited for the copy
                self._advance(pull)
            return
        finally:
            pull.copying = False
        self._advance(pull)

    def _activate(self, pull: PullState, state: StateReady) -> None:
        request_id = pull.request.request_id
        try:
            sections = pull.sections.complete(state)
        except TransferError as error:
            self._fail(pull, error.code, str(error))
            return
        pull.phase = PullPhase.ACTIVATING
        del self.pulls[request_id]
        if state.finish is not None:
            self._discard(request_id)
        else:
            activated = self.engine.call(lambda engine: engine.activate(request_id, state.first_token, sections))
            activated.add_done_callback(lambda done: self._activated(request_id, done))
        assert pull.link is not None
        pull.link.send(Release(request_id=request_id))
        self.owner.transfer_done(request_id, seconds=time.monotonic() - pull.state_at, ended=state.finish is not None)

    def _activated(self, request_id: RequestId, done: asyncio.Future[None]) -> None:
        """The pull is over; where the engine does not take what came, so is the request."""
        if not done.cancelled() and (error := done.exception()) is not None:
            self.counters.faults += 1
            logger.error("activate failed", exc_info=error)
            self._discard(request_id)
            self.owner.transfer_failed(request_id, ErrorCode.INTERNAL, f"the engine did not take it over: {error}")

    def _fail(self, pull: PullState, code: ErrorCode, message: str) -> None:
        if pull.failure is None:
            pull.failure = (code, message)
            self.counters.failed += code is not ErrorCode.CANCELLED
            self._advance(pull)

    def _end(self, pull: PullState) -> None:
        """Give everything back, also a reservation that is still being made: the engine answers its calls in order, so
        that the id is free for whoever uses it next.
        """
        request_id = pull.request.request_id
        if self.pulls.pop(request_id, None) is None:
            return
        assert pull.failure is not None
        code, message = pull.failure
        if pull.reservation is not None or pull.phase is PullPhase.RESERVING or pull.refusals:
            self._discard(request_id)
        if pull.link is not None:
            pull.link.send(Abort(request_id=request_id, code=code, message=message))
        self.owner.transfer_failed(request_id, code, message)

    def _discard(self, request_id: RequestId) -> None:
        self.engine.post(lambda engine: engine.cancel(request_id))

    def _spawn(self, pull: PullState, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(lambda done: self._reap(pull, done))

    def _reap(self, pull: PullState, task: asyncio.Task[None]) -> None:
        """A fault of ours must be seen, and ends its pull: nothing is being copied any more."""
        self._tasks.discard(task)
        if task.cancelled() or (error := task.exception()) is None:
            return
        self.counters.faults += 1
        pull.copying = False
        logger.error("pull task failed", exc_info=error)
        if self.pulls.get(pull.request.request_id) is not pull:
            return  # over already; its id may be another's
        if pull.failure is None:
            self._fail(pull, ErrorCode.INTERNAL, f"the transfer failed: {error}")
        else:
            self._advance(pull)
