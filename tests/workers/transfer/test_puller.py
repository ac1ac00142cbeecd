"""The decode side alone, its engine answering when the test says so."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.workers.engine.factories import make_request
from tests.workers.fake_engine import FakeArena
from workers.engine.api import Reservation
from workers.protocol import Abort, BlocksReady, Credit, ErrorCode, Frame, NoCredit, RequestId, Reserve, StateReady
from workers.transfer.base import BlockSource, PeerUnreachable
from workers.transfer.deadlines import Deadlines
from workers.transfer.puller import Puller

NAME = RequestId("a")


@dataclass
class Recorder:
    """Engine calls in order, frames sent, and what the gateway is told."""

    calls: list[str] = field(default_factory=list)
    answers: list[asyncio.Future[Any]] = field(default_factory=list)
    frames: list[Frame] = field(default_factory=list)
    told: list[ErrorCode] = field(default_factory=list)
    done: list[RequestId] = field(default_factory=list)
    over: asyncio.Event = field(default_factory=asyncio.Event)

    def call(self, function: Callable[[Any], Any]) -> asyncio.Future[Any]:
        function(self)
        self.answers.append(asyncio.get_running_loop().create_future())
        return self.answers[-1]

    def post(self, function: Callable[[Any], object]) -> None:
        function(self)

    def reserve(self, request: object) -> None:
        self.calls.append("reserve")

    def activate(self, request_id: RequestId, first_token: int, sections: object) -> None:
        self.calls.append("activate")

    def cancel(self, request_id: RequestId) -> None:
        self.calls.append("cancel")

    def send(self, frame: Frame) -> None:
        self.frames.append(frame)

    def transfer_failed(self, request_id: RequestId, code: ErrorCode, message: str) -> None:
        self.told.append(code)
        self.over.set()

    def transfer_done(self, request_id: RequestId, *, seconds: float, ended: bool) -> None:
        self.done.append(request_id)


@dataclass
class Stage:
    recorder: Recorder
    puller: Puller

    async def ask_for_room(self) -> None:
        """The request comes, its link stands, and prefill is about to start."""
        self.puller.add(make_request(range(1, 9), request_id=NAME))
        self.puller.attach(NAME, self.recorder, None, 1)  # type: ignore[arg-type]
        self.puller.reserve(self.recorder, Reserve(request_id=NAME))
        await asyncio.sleep(0)

    async def answer(self, number: int, *, have_blocks: int = 0) -> None:
        await self.settle(number, Reservation(have_blocks=have_blocks, slots=[0, 1]))

    async def settle(self, number: int, result: Reservation | Exception | None) -> None:
        if isinstance(result, Exception):
            self.recorder.answers[number].set_exception(result)
        else:
            self.recorder.answers[number].set_result(result)
        for _ in range(5):
            await asyncio.sleep(0)


@pytest.fixture
def stage() -> Stage:
    recorder = Recorder()
    return Stage(recorder, Puller(recorder, recorder, Deadlines(), None, 4))  # type: ignore[arg-type]


async def test_a_cancel_while_room_is_being_made_gives_it_back(stage: Stage) -> None:
    await stage.ask_for_room()
    stage.puller.cancel(NAME)
    await stage.answer(0)
    assert stage.recorder.calls == ["reserve", "cancel"]
    assert stage.recorder.told == [ErrorCode.CANCELLED]
    assert [frame for frame in stage.recorder.frames if isinstance(frame, Credit)] == []
    assert isinstance(stage.recorder.frames[-1], Abort)


async def test_the_next_user_of_an_id_does_not_lose_its_room_to_the_one_before(stage: Stage) -> None:
    await stage.ask_for_room()
    stage.puller.cancel(NAME)
    await stage.ask_for_room()
    await stage.answer(0)
    await stage.answer(1)
    assert stage.recorder.calls == ["reserve", "cancel", "reserve"]
    assert isinstance(stage.recorder.frames[-1], Credit)
    assert stage.puller.transfers == 1


async def test_an_engine_that_does_not_answer_in_time_owes_the_room(stage: Stage) -> None:
    stage.puller.deadlines = Deadlines(engine_s=0.01)
    await stage.ask_for_room()
    await asyncio.wait_for(stage.recorder.over.wait(), 20)
    assert stage.recorder.calls == ["reserve", "cancel"]
    assert stage.recorder.told == [ErrorCode.INTERNAL]


async def test_each_refusal_asks_for_more_patience_and_the_engine_forgets_at_the_end(stage: Stage) -> None:
    await stage.ask_for_room()
    for number in range(6):
        await stage.settle(number, None)
        stage.puller.reserve(stage.recorder, Reserve(request_id=NAME))
        await asyncio.sleep(0)
    await stage.settle(6, None)
    waits = [frame.retry_after_s for frame in stage.recorder.frames if isinstance(frame, NoCredit)]
    assert waits == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0, 1.0]
    stage.puller.cancel(NAME)
    assert stage.recorder.calls[-1] == "cancel"


async def test_a_fault_while_room_is_made_fails_the_pull_at_once(stage: Stage) -> None:
    await stage.ask_for_room()
    await stage.settle(0, RuntimeError("a fault of ours"))
    assert stage.recorder.told == [ErrorCode.INTERNAL]
    assert stage.recorder.calls == ["reserve", "cancel"]
    assert (stage.puller.pulls, stage.puller.counters.faults) == ({}, 1)


@pytest.mark.parametrize("cancelled", [False, True])
async def test_a_fault_while_copying_ends_the_pull(stage: Stage, cancelled: bool) -> None:
    await stage.ask_for_room()
    await stage.answer(0)  # there is no source to copy from: the copy meets an error nobody expects
    stage.puller.blocks_ready(stage.recorder, BlocksReady(request_id=NAME, first=0, slots=[0], generations=[0]))
    if cancelled:
        stage.puller.cancel(NAME)
    for _ in range(5):
        await asyncio.sleep(0)
    assert stage.recorder.told == [ErrorCode.CANCELLED if cancelled else ErrorCode.INTERNAL]
    assert stage.recorder.calls == ["reserve", "cancel"]
    assert stage.puller.pulls == {}


class Broken(BlockSource):
    """A network that fails when the test says so."""

    block_bytes = 256

    def __init__(self) -> None:
        self.fails = asyncio.Event()

    async def read(self, request_id: RequestId, pulls: object) -> None:
        await self.fails.wait()
        raise PeerUnreachable("the link has ended")

    def close(self) -> None:
        pass


@pytest.mark.parametrize("end", ["cancel", "link closed"])
async def test_a_copy_that_fails_ends_a_pull_that_waited_for_it(stage: Stage, end: str) -> None:
    """Its room goes back, also where the failure of the copy is not the first thing that went wrong."""
    await stage.ask_for_room()
    await stage.answer(0)
    source = stage.puller.pulls[NAME].source = Broken()
    stage.puller.arena = FakeArena(2)
    stage.puller.blocks_ready(stage.recorder, BlocksReady(request_id=NAME, first=0, slots=[0], generations=[0]))
    await asyncio.sleep(0)
    if end == "cancel":
        stage.puller.cancel(NAME)
    else:
        stage.puller.link_closed(stage.recorder)
    assert stage.recorder.told == []
    source.fails.set()
    for _ in range(5):
        await asyncio.sleep(0)
    assert stage.recorder.told == [ErrorCode.CANCELLED if end == "cancel" else ErrorCode.PEER_LOST]
    assert stage.recorder.calls == ["reserve", "cancel"]
    assert stage.puller.pulls == {}


async def test_an_engine_that_does_not_take_over_fails_the_request(stage: Stage) -> None:
    await stage.ask_for_room()
    await stage.answer(0, have_blocks=2)
    stage.puller.state_ready(stage.recorder, StateReady(request_id=NAME, first_token=1, sections=[]))
    assert stage.recorder.calls == ["reserve", "activate"]
    assert stage.recorder.done == [NAME]
    await stage.settle(1, ValueError("sections nobody knows"))
    assert stage.recorder.told == [ErrorCode.INTERNAL]
    assert stage.recorder.calls == ["reserve", "activate", "cancel"]
