"""The prefill side alone, deadlines of which have passed as soon as a test sets them to zero."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from workers.protocol import Abort, Address, Credit, ErrorCode, Frame, NoCredit, RequestId, Reserve, Subscribe
from workers.transfer.deadlines import Deadlines
from workers.transfer.holder import Holder, HoldPhase

NAME = RequestId("a")
DECODE = Address(worker="d", epoch=1)


@dataclass(eq=False)
class Recorder:
    """Engine, link and gateway in one."""

    calls: list[str] = field(default_factory=list)
    deferred: list[float] = field(default_factory=list)
    answers: list[asyncio.Future[Any]] = field(default_factory=list)
    frames: list[Frame] = field(default_factory=list)
    told: list[ErrorCode] = field(default_factory=list)

    def call(self, function: Callable[[Any], Any]) -> asyncio.Future[Any]:
        function(self)
        self.answers.append(asyncio.get_running_loop().create_future())
        return self.answers[-1]

    def post(self, function: Callable[[Any], object]) -> None:
        function(self)

    def grant(self, request_id: RequestId) -> None:
        self.calls.append("grant")

    def defer(self, request_id: RequestId, until: float) -> None:
        self.calls.append("defer")
        self.deferred.append(until)

    def cancel(self, request_id: RequestId) -> None:
        self.calls.append("cancel")

    def send(self, frame: Frame) -> None:
        self.frames.append(frame)

    def transfer_failed(self, request_id: RequestId, code: ErrorCode, message: str) -> None:
        self.told.append(code)

    def transfer_done(self, request_id: RequestId, *, seconds: float, ended: bool) -> None:
        raise AssertionError("nothing was transferred")

    @property
    def asked(self) -> int:
        return sum(isinstance(frame, Reserve) for frame in self.frames)


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture
def holder(recorder: Recorder) -> Holder:
    holder = Holder(recorder, recorder, Deadlines(turn_s=0.0))  # type: ignore[arg-type]
    holder.link_opened(recorder, DECODE)
    holder.add(NAME, DECODE)
    return holder


def subscribe(holder: Holder, recorder: Recorder) -> None:
    holder.subscribed(recorder, Subscribe(request_id=NAME, epoch=1))


async def test_a_request_without_credit_goes_back_into_the_queue(holder: Holder, recorder: Recorder) -> None:
    subscribe(holder, recorder)
    for times in (1, 2):
        holder.wants_credit(NAME)
        assert recorder.asked == times
        holder.not_credited(recorder, NoCredit(request_id=NAME, reason="full", retry_after_s=0.5))
        assert recorder.calls == ["defer"] * times
        assert holder.holds[NAME].phase is HoldPhase.QUEUED
        assert holder.transfers == 0


async def test_a_decode_worker_that_does_not_answer_costs_the_turn_not_the_request(
    holder: Holder, recorder: Recorder
) -> None:
    subscribe(holder, recorder)
    holder.wants_credit(NAME)
    holder.sweep()
    holder.sweep()
    assert recorder.deferred == [float("inf")]
    holder.credited(recorder, Credit(request_id=NAME, have_blocks=0))
    assert recorder.calls == ["defer", "grant"]


async def test_a_late_subscription_waits_for_its_turn_again(holder: Holder, recorder: Recorder) -> None:
    holder.wants_credit(NAME)
    holder.sweep()
    subscribe(holder, recorder)
    assert recorder.asked == 0
    assert len(recorder.deferred) == 2
    assert recorder.deferred[1] < float("inf")
    holder.wants_credit(NAME)
    assert recorder.asked == 1


async def test_a_subscription_in_time_is_asked_at_once(recorder: Recorder) -> None:
    holder = Holder(recorder, recorder, Deadlines())  # type: ignore[arg-type]
    holder.link_opened(recorder, DECODE)
    holder.add(NAME, DECODE)
    holder.wants_credit(NAME)
    holder.sweep()
    subscribe(holder, recorder)
    assert (recorder.asked, recorder.calls) == (1, [])


async def test_a_grant_that_the_engine_does_not_take_fails_the_request(holder: Holder, recorder: Recorder) -> None:
    subscribe(holder, recorder)
    holder.wants_credit(NAME)
    holder.credited(recorder, Credit(request_id=NAME, have_blocks=0))
    recorder.answers[0].set_exception(RuntimeError("a fault of ours"))
    for _ in range(3):
        await asyncio.sleep(0)
    assert recorder.told == [ErrorCode.INTERNAL]
    assert recorder.calls == ["grant", "cancel"]
    assert isinstance(recorder.frames[-1], Abort)


async def test_a_release_is_waited_for_while_decode_goes_on_reading(holder: Holder, recorder: Recorder) -> None:
    """Over a network the copy of a long prompt may take longer than the deadline."""
    subscribe(holder, recorder)
    holder.wants_credit(NAME)
    holder.credited(recorder, Credit(request_id=NAME, have_blocks=0))
    hold = holder.holds[NAME]
    hold.phase, hold.until = HoldPhase.RELEASE, 0.0
    holder.reading(Address(worker="another", epoch=1), NAME)
    assert hold.until == 0.0
    holder.reading(DECODE, NAME)
    holder.sweep()
    assert hold.phase is HoldPhase.RELEASE
    hold.until = 0.0
    holder.sweep()
    assert holder.holds == {}
