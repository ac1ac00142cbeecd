"""The prefill side: requests whose blocks are pinned here until their decode worker has copied them.

All of it runs on the event loop; the engine is reached through `EngineCalls`. A hold has one phase at a time, each with
a deadline, and ends exactly once: by `Release`, by `Abort`, by its link's end, by a deadline, or by a cancel.

Two owners: once blocks were announced the decode worker may be reading them, so a cancel first asks it to let go
(`Abort`, answered by `Release`) and frees afterwards.
"""

from __future__ import annotations

import asyncio
import enum
import logging
import time
from collections import Counter
from dataclasses import dataclass, field

from workers.engine.api import BlocksEvent, Prefilled
from workers.protocol import (
    Abort,
    Address,
    BlocksReady,
    Credit,
    ErrorCode,
    NoCredit,
    Release,
    RequestId,
    Reserve,
    StateReady,
    Subscribe,
)
from workers.transfer.base import EngineCalls, FrameSink, RequestOwner
from workers.transfer.deadlines import Deadlines
from workers.transfer.sections import parts, references

logger = logging.getLogger(__name__)

MAX_EARLY = 4096
"""Subscriptions kept for requests that have not arrived."""


class HoldPhase(enum.StrEnum):
    QUEUED = "queued"
    """In the engine's queue, perhaps deferred there; its deadline is the request's, kept by the engine."""
    SUBSCRIBER = "subscriber"
    """Could start, the decode worker has not subscribed."""
    CREDIT = "credit"
    """`Reserve` sent."""
    FILLING = "filling"
    """Prefill runs, blocks are announced."""
    RELEASE = "release"
    """Everything announced; the decode worker copies the rest."""
    ABORTING = "aborting"
    """Given up here, the decode worker may still be copying."""


@dataclass(slots=True)
class Hold:
    request_id: RequestId
    decode: Address
    phase: HoldPhase = HoldPhase.QUEUED
    until: float = float("inf")
    """Monotonic end of the phase."""
    turn_until: float = float("inf")
    """SUBSCRIBER and CREDIT: when it stops keeping others from starting; inf once it did."""
    link: FrameSink | None = None
    have_blocks: int = 0
    announced: bool = False
    failure: tuple[ErrorCode, str] | None = None
    """What the gateway is told when ABORTING ends."""
    prefilled_at: float = 0.0


@dataclass(slots=True)
class _Early:
    link: FrameSink
    until: float


@dataclass(slots=True)
class Holder:
    engine: EngineCalls
    owner: RequestOwner
    deadlines: Deadlines
    holds: dict[RequestId, Hold] = field(default_factory=dict)
    early: dict[RequestId, _Early] = field(default_factory=dict)
    peers: dict[FrameSink, Address] = field(default_factory=dict)
    """The decode worker at the other end of each link."""

    # --- from the gateway ------------------------------------------------------------------------------------

    def add(self, request_id: RequestId, decode: Address) -> None:
        """A request was queued in the engine with hold=True. Its subscription may have come before it."""
        hold = Hold(request_id, decode)
        self.holds[request_id] = hold
        early = self.early.pop(request_id, None)
        if early is not None:
            self._attach(hold, early.link)

    def cancel(self, request_id: RequestId) -> None:
        """The gateway gave the request up: it gets no answer."""
        hold = self.holds.get(request_id)
        if hold is not None:
            self._give_up(hold, ErrorCode.CANCELLED, "cancelled by its gateway")

    # --- from the decode worker ------------------------------------------------------------------------------

    def link_opened(self, link: FrameSink, peer: Address) -> None:
        self.peers[link] = peer

    def link_closed(self, link: FrameSink) -> None:
        """The decode worker is gone: nothing of its requests is of use to anybody (and nobody reads the blocks)."""
        peer = self.peers.pop(link, None)
        for request_id in [key for key, early in self.early.items() if early.link is link]:
            del self.early[request_id]
        for hold in [hold for hold in self.holds.values() if hold.link is link]:
            code, message = hold.failure or (ErrorCode.PEER_LOST, f"the connection to decode worker {peer} was lost")
            self._free(hold, code, message)

    def subscribed(self, link: FrameSink, frame: Subscribe) -> None:
        hold = self.holds.get(frame.request_id)
        if hold is not None:
            self._attach(hold, link)
        elif len(self.early) >= MAX_EARLY:
            link.send(Abort(request_id=frame.request_id, code=ErrorCode.QUEUE_FULL, message="too many subscriptions"))
        else:
            self.early[frame.request_id] = _Early(link, time.monotonic() + self.deadlines.early_subscribe_s)

    def credited(self, link: FrameSink, frame: Credit) -> None:
        hold = self._of(link, frame.request_id)
        if hold is None or hold.phase is not HoldPhase.CREDIT:
            # Given up meanwhile: decode must not keep its room.
            link.send(Abort(request_id=frame.request_id, code=ErrorCode.CANCELLED, message="no longer wanted"))
            return
        hold.have_blocks = frame.have_blocks
        self._enter(hold, HoldPhase.FILLING, None)
        request_id = hold.request_id
        granted = self.engine.call(lambda engine: engine.grant(request_id))
        granted.add_done_callback(lambda done: self._granted(hold, done))

    def not_credited(self, link: FrameSink, frame: NoCredit) -> None:
        hold = self._of(link, frame.request_id)
        if hold is not None and hold.phase is HoldPhase.CREDIT:
            # Back into the engine's queue: it may ask again then, and others start meanwhile. The wait as a whole ends
            # with the request's deadline, which the engine keeps.
            self._enter(hold, HoldPhase.QUEUED, None)
            self._defer(hold, time.monotonic() + max(0.01, min(frame.retry_after_s, 5.0)))

    def released(self, link: FrameSink, frame: Release) -> None:
        hold = self._of(link, frame.request_id)
        if hold is None:
            return
        if hold.phase is HoldPhase.RELEASE:
            del self.holds[hold.request_id]
            request_id = hold.request_id
            self.engine.post(lambda engine: engine.release(request_id))
            self.owner.transfer_done(request_id, seconds=time.monotonic() - hold.prefilled_at, ended=True)
        elif hold.failure is not None:
            self._free(hold, *hold.failure)
        else:
            self._free(hold, ErrorCode.TRANSFER, f"decode worker released the request while it was {hold.phase}")

    def aborted(self, link: FrameSink, frame: Abort) -> None:
        """Decode gave up, and copies nothing any more."""
        self.early.pop(frame.request_id, None)
        hold = self._of(link, frame.request_id)
        if hold is not None:
            self._free(hold, *(hold.failure or (frame.code, frame.message)))

    def reading(self, peer: Address, request_id: RequestId) -> None:
        """Decode has read some blocks over a network. That may take longer than `release_s`, as long as it goes on."""
        hold = self.holds.get(request_id)
        if hold is not None and hold.phase is HoldPhase.RELEASE and hold.decode == peer:
            self._enter(hold, HoldPhase.RELEASE, self.deadlines.release_s)

    # --- from the engine -------------------------------------------------------------------------------------

    def wants_credit(self, request_id: RequestId) -> None:
        hold = self.holds.get(request_id)
        if hold is None or hold.phase is not HoldPhase.QUEUED:
            return
        hold.turn_until = time.monotonic() + self.deadlines.turn_s
        if hold.link is None:
            self._enter(hold, HoldPhase.SUBSCRIBER, self.deadlines.subscribe_s)
        else:
            self._ask(hold)

    def blocks_ready(self, event: BlocksEvent) -> None:
        """Announce what decode does not hold already."""
        hold = self.holds.get(event.request_id)
        if hold is None or hold.phase is not HoldPhase.FILLING or hold.link is None:
            return
        skip = max(0, hold.have_blocks - event.first)
        if skip < len(event.slots):
            hold.announced = True
            hold.link.send(
                BlocksReady(
                    request_id=event.request_id,
                    first=event.first + skip,
                    slots=event.slots[skip:],
                    generations=event.generations[skip:],
                )
            )

    def prefilled(self, event: Prefilled) -> None:
        hold = self.holds.get(event.request_id)
        if hold is None or hold.phase is not HoldPhase.FILLING or hold.link is None:
            return
        hold.prefilled_at = time.monotonic()
        hold.announced = True
        self._enter(hold, HoldPhase.RELEASE, self.deadlines.release_s)
        for part in parts(event.request_id, event.sections):
            hold.link.send(part)
        hold.link.send(
            StateReady(
                request_id=event.request_id,
                first_token=event.first_token,
                sections=references(event.sections),
                finish=event.finish,
            )
        )

    def engine_failed(self, request_id: RequestId, code: ErrorCode, message: str) -> None:
        """The engine ended the request by itself (it was told already): only decode has to hear of it."""
        hold = self.holds.pop(request_id, None)
        if hold is not None and hold.link is not None:
            hold.link.send(Abort(request_id=request_id, code=code, message=message))

    # --- deadlines -------------------------------------------------------------------------------------------

    def sweep(self) -> None:
        now = time.monotonic()
        for request_id in [key for key, early in self.early.items() if early.until <= now]:
            early = self.early.pop(request_id)
            early.link.send(
                Abort(request_id=request_id, code=ErrorCode.DEADLINE, message="its prefill request never arrived")
            )
        for hold in self.holds.values():
            if hold.turn_until <= now and hold.phase in (HoldPhase.SUBSCRIBER, HoldPhase.CREDIT):
                hold.turn_until = float("inf")
                self._defer(hold, float("inf"))
        for hold in [hold for hold in self.holds.values() if hold.until <= now]:
            match hold.phase:
                case HoldPhase.ABORTING:
                    self._free(hold, *(hold.failure or (ErrorCode.DEADLINE, "the decode worker did not answer")))
                case HoldPhase.SUBSCRIBER:
                    self._free(hold, ErrorCode.PEER_LOST, f"decode worker {hold.decode} did not subscribe")
                case _:
                    self._give_up(hold, ErrorCode.PEER_LOST, f"decode worker {hold.decode} is silent ({hold.phase})")

    def gauges(self) -> dict[str, float]:
        counts = Counter(hold.phase for hold in self.holds.values())
        return {f"hold.{phase}": float(counts[phase]) for phase in HoldPhase} | {"hold.early": float(len(self.early))}

    @property
    def transfers(self) -> int:
        return sum(hold.phase is not HoldPhase.QUEUED for hold in self.holds.values())

    # --- inside ----------------------------------------------------------------------------------------------

    def _of(self, link: FrameSink, request_id: RequestId) -> Hold | None:
        hold = self.holds.get(request_id)
        return hold if hold is not None and hold.link is link else None

    def _attach(self, hold: Hold, link: FrameSink) -> None:
        if self.peers.get(link) != hold.decode:
            link.send(Abort(request_id=hold.request_id, code=ErrorCode.INVALID, message=f"meant for {hold.decode}"))
            return
        hold.link = link
        if hold.phase is not HoldPhase.SUBSCRIBER:
            return
        if hold.turn_until < float("inf"):
            self._ask(hold)
        else:  # its turn went to others
            self._enter(hold, HoldPhase.QUEUED, None)
            self._defer(hold, time.monotonic())

    def _ask(self, hold: Hold) -> None:
        assert hold.link is not None
        self._enter(hold, HoldPhase.CREDIT, self.deadlines.credit_s)
        hold.link.send(Reserve(request_id=hold.request_id))

    def _defer(self, hold: Hold, until: float) -> None:
        request_id = hold.request_id
        self.engine.post(lambda engine: engine.defer(request_id, until))

    def _granted(self, hold: Hold, done: asyncio.Future[None]) -> None:
        """A fault of the engine's ends the request that met it."""
        if not done.cancelled() and (error := done.exception()) is not None:
            logger.error("grant failed", exc_info=error)
            if self.holds.get(hold.request_id) is hold:
                self._give_up(hold, ErrorCode.INTERNAL, f"the engine could not start it: {error}")

    def _enter(self, hold: Hold, phase: HoldPhase, seconds: float | None) -> None:
        hold.phase = phase
        hold.until = float("inf") if seconds is None else time.monotonic() + seconds

    def _give_up(self, hold: Hold, code: ErrorCode, message: str) -> None:
        """End the request from this side; where decode may be reading blocks, only after it let go."""
        if hold.phase is HoldPhase.ABORTING:
            return
        if hold.link is not None:
            hold.link.send(Abort(request_id=hold.request_id, code=code, message=message))
        if hold.announced and hold.link is not None:
            hold.failure = (code, message)
            self._enter(hold, HoldPhase.ABORTING, self.deadlines.abort_s)
        else:
            self._free(hold, code, message)

    def _free(self, hold: Hold, code: ErrorCode, message: str) -> None:
        if self.holds.pop(hold.request_id, None) is None:
            return
        request_id = hold.request_id
        self.engine.post(lambda engine: engine.cancel(request_id))
        self.owner.transfer_failed(request_id, code, message)
