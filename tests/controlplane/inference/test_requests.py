"""One request at the workers: order, both sides, retries, ends."""

from __future__ import annotations

import asyncio
import time

import pytest

from controlplane.inference.events import Event, Output, RequestFailed, Restarted
from controlplane.inference.requests import Generation
from controlplane.inference.router import NoWorkers
from tests.controlplane.inference.conftest import Core, eventually
from tests.controlplane.inference.stub_worker import Script
from workers.protocol import Decode, ErrorCode, Finish, Prefill, Role, Sampling, Scheduled


async def collect(generation: Generation, wake: asyncio.Event) -> list[Event]:
    events: list[Event] = []
    async with asyncio.timeout(10):
        while True:
            wake.clear()
            while (event := generation.poll()) is not None:
                events.append(event)
            if generation.done:
                return events
            await wake.wait()


def tokens(events: list[Event]) -> list[int]:
    return [token for event in events if isinstance(event, Output) for token in event.tokens]


async def test_prefill_and_decode_make_one_ordered_output(core: Core) -> None:
    prefill, decode = await core.pair()
    core.cluster.scripts = [Script(tokens=[10, 11, 12, 13], hit_tokens=3)]
    generation, wake = core.generation()
    generation.start()
    events = await collect(generation, wake)
    assert isinstance(events[0], Scheduled)
    assert (events[0].pool_hit_tokens, events[0].miss_tokens) == (3, 1)
    assert tokens(events) == [10, 11, 12, 13]
    assert isinstance(events[-1], Output)
    assert events[-1].finish is Finish.STOP
    first = prefill.received[0]
    assert isinstance(first, Prefill)
    assert first.decode == decode.address
    second = decode.received[0]
    assert isinstance(second, Decode)
    assert (second.prefill, second.prefill_endpoint) == (prefill.address, prefill.lease.endpoint)
    assert (first.epoch, second.epoch) == (prefill.address.epoch, decode.address.epoch)


async def test_role_both_serves_alone(core: Core) -> None:
    both = await core.add(Role.BOTH)
    generation, wake = core.generation()
    generation.start()
    assert tokens(await collect(generation, wake)) == [1, 2, 3]
    frame = both.received[0]
    assert isinstance(frame, Prefill)
    assert frame.decode is None


async def test_decode_is_told_when_the_first_token_ends_it(core: Core) -> None:
    _, decode = await core.pair()
    core.cluster.scripts = [Script(tokens=[7])]
    generation, wake = core.generation()
    generation.start()
    assert tokens(await collect(generation, wake)) == [7]
    await eventually(lambda: decode.cancelled() == ["req_1"])


@pytest.mark.parametrize("hang_before", [0, 1, 2])
async def test_closing_cancels_both_sides(core: Core, hang_before: int) -> None:
    prefill, decode = await core.pair()
    core.cluster.scripts = [Script(tokens=[1, 2, 3, 4], hang_before=hang_before)]
    generation, _ = core.generation()
    generation.start()
    await eventually(lambda: bool(prefill.received) and bool(decode.received))
    generation.close("disconnected")
    generation.close("twice")
    await eventually(lambda: prefill.cancelled() == ["req_1"] and decode.cancelled() == ["req_1"])
    assert not prefill.running
    assert not decode.running


async def test_no_workers(core: Core) -> None:
    generation, _ = core.generation()
    with pytest.raises(NoWorkers, match="no worker has announced itself"):
        generation.start()
    await core.add(Role.PREFILL)
    with pytest.raises(NoWorkers, match="prefill-0"):
        generation.start()


async def test_retried_once_on_another_pair(core: Core) -> None:
    for _ in range(2):
        await core.pair()
    core.cluster.scripts = [Script(fail=ErrorCode.QUEUE_FULL), Script(tokens=[4, 5])]
    generation, wake = core.generation()
    generation.start()
    events = await collect(generation, wake)
    assert isinstance(events[0], Restarted)
    assert tokens(events) == [4, 5]
    prefills = [f for w in core.cluster.workers.values() for f in w.received if isinstance(f, Prefill)]
    assert {frame.request_id for frame in prefills} == {"req_1", "req_1.retry1"}
    assert len({frame.decode.worker for frame in prefills if frame.decode}) == 2


async def test_retried_only_once(core: Core) -> None:
    for _ in range(3):
        await core.pair()
    core.cluster.scripts = [Script(fail=ErrorCode.PEER_LOST)]
    generation, wake = core.generation()
    generation.start()
    events = await collect(generation, wake)
    assert isinstance(events[-1], RequestFailed)
    assert events[-1].code is ErrorCode.PEER_LOST
    assert sum(isinstance(f, Prefill) for w in core.cluster.workers.values() for f in w.received) == 2


async def test_the_callers_own_fault_is_not_retried(core: Core) -> None:
    await core.add(Role.BOTH)
    await core.add(Role.BOTH)
    core.cluster.scripts = [Script(fail=ErrorCode.INVALID), Script()]
    generation, wake = core.generation()
    generation.start()
    events = await collect(generation, wake)
    assert isinstance(events[-1], RequestFailed)
    assert events[-1].code is ErrorCode.INVALID


async def test_a_killed_worker_before_the_first_token_is_retried(core: Core) -> None:
    await core.add(Role.BOTH)
    await core.add(Role.BOTH)
    core.cluster.scripts = [Script(die_before=0), Script(tokens=[9, 9])]
    generation, wake = core.generation()
    generation.start()
    assert tokens(await collect(generation, wake)) == [9, 9]


async def test_a_killed_decode_worker_in_mid_stream_fails_clearly(core: Core) -> None:
    await core.pair()
    await core.pair()
    core.cluster.scripts = [Script(tokens=[1, 2, 3, 4], delay_s=0.02, die_before=2), Script()]
    generation, wake = core.generation()
    generation.start()
    events = await collect(generation, wake)
    assert tokens(events) == [1, 2]
    assert isinstance(events[-1], RequestFailed)
    assert events[-1].code is ErrorCode.PEER_LOST


async def test_a_prefill_worker_that_dies_after_its_part_is_not_missed(core: Core) -> None:
    prefill, _ = await core.pair()
    core.cluster.scripts = [Script(tokens=[1, 2, 3, 4, 5, 6], delay_s=0.1)]
    generation, wake = core.generation()
    generation.start()
    events: list[Event] = []
    async with asyncio.timeout(10):
        while len(tokens(events)) < 2:
            await wake.wait()
            wake.clear()
            while (event := generation.poll()) is not None:
                events.append(event)
    await prefill.stop()
    events += await collect(generation, wake)
    assert tokens(events) == [1, 2, 3, 4, 5, 6]


async def test_with_nothing_sent_it_restarts_even_after_tokens(core: Core) -> None:
    await core.pair()
    await core.pair()
    core.cluster.scripts = [Script(tokens=[1, 2, 3, 4], die_before=2), Script(tokens=[8, 8, 8])]
    generation, wake = core.generation(keep_restartable=True)
    generation.start()
    events = await collect(generation, wake)
    restart = next(index for index, event in enumerate(events) if isinstance(event, Restarted))
    assert tokens(events[restart:]) == [8, 8, 8]


async def test_a_worker_that_gives_up_is_as_good_as_lost(core: Core) -> None:
    await core.add(Role.BOTH)
    core.cluster.scripts = [Script(tokens=[1], finish=Finish.CANCELLED)]
    generation, wake = core.generation()
    generation.start()
    events = await collect(generation, wake)
    assert isinstance(events[-1], RequestFailed)
    assert events[-1].code is ErrorCode.PEER_LOST


async def test_workers_get_what_is_left_of_the_deadline(core: Core) -> None:
    both = await core.add(Role.BOTH)
    generation, wake = core.generation(deadline=time.monotonic() + 3, sampling=Sampling(max_tokens=2))
    generation.start()
    events = await collect(generation, wake)
    assert isinstance(events[-1], Output)
    assert events[-1].finish is Finish.LENGTH
    frame = both.received[0]
    assert isinstance(frame, Prefill)
    assert 0 < frame.deadline_s <= 3


async def test_unread_events_are_bounded(core: Core) -> None:
    await core.add(Role.BOTH)
    core.limits = type(core.limits)(inbox_events=3)
    core.cluster.scripts = [Script(tokens=list(range(100, 150)))]
    generation, wake = core.generation()
    generation.start()
    await eventually(lambda: generation.done)
    wake.clear()
    event = generation.poll()
    assert isinstance(event, RequestFailed)
