"""Two real processes, prefill and decode, around the fake engine: every phase ends well, badly, and cancelled."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable

import pytest

from tests.workers.conftest import Process, Workers, connect_pair
from tests.workers.fake_engine import expected
from tests.workers.protocol_client import Client, Pair, assert_cancelled, decode_frame, prefill_frame
from workers.protocol import Address, ErrorCode, Finish, Role

PROMPT = list(range(1, 39))
"""Ten blocks, five chunks of eight tokens."""


@pytest.fixture
def processes(workers: Workers) -> tuple[Process, Process]:
    """For tests that kill or stop one in the middle of prefill, which takes two seconds here: 38 chunks of a token."""
    model = "fake?step_s=0.05&chunk=1"
    return (
        workers.start(workers.spec(Role.PREFILL, name="p", model=model)),
        workers.start(workers.spec(Role.DECODE, name="d", model=model)),
    )


@pytest.mark.parametrize("decode_first", [True, False])
async def test_tokens_equal_those_of_one_engine(pair: Pair, decode_first: bool) -> None:
    pair.start("a", PROMPT, 20, decode_first=decode_first)
    assert await pair.finished("a") == expected(PROMPT, 20)
    assert sorted(pair.prefill.about("a").tokens) == [0]
    assert pair.decode.about("a").finish is Finish.LENGTH
    assert pair.decode.about("a").scheduled is None
    await pair.idle()


async def test_many_at_once(pair: Pair) -> None:
    prompts = {f"r{n}": list(range(n + 1, n + 1 + 3 * n + 2)) for n in range(12)}
    for name, prompt in prompts.items():
        pair.start(name, prompt, 8)
    for name, prompt in prompts.items():
        assert await pair.finished(name) == expected(prompt, 8)
    await pair.idle()


async def test_a_second_turn_sends_only_what_decode_lacks(pair: Pair) -> None:
    pair.start("a", PROMPT, 4)
    first = await pair.finished("a")
    await pair.idle()
    longer = PROMPT + first + [7, 8, 9]
    pair.start("b", longer, 4)
    assert await pair.finished("b") == expected(longer, 4)
    scheduled = pair.prefill.about("b").scheduled
    assert scheduled is not None
    assert scheduled.pool_hit_tokens == 36


async def test_a_first_token_that_is_the_last(pair: Pair) -> None:
    pair.start("length", PROMPT, 1)
    await pair.prefill.until(lambda: pair.prefill.about("length").ended)
    pair.start("stop", PROMPT, 10, stop=(expected(PROMPT, 1)[0],))
    await pair.prefill.until(lambda: pair.prefill.about("stop").ended)
    assert pair.prefill.about("length").finish is Finish.LENGTH
    assert pair.prefill.about("stop").finish is Finish.STOP
    await pair.idle()
    assert not pair.decode.about("stop").ended
    assert not pair.decode.about("length").ended


async def test_without_room_on_decode_prefill_waits(workers: Workers) -> None:
    prefill = workers.start(workers.spec(Role.PREFILL, model="fake?step_s=0.01"))
    decode = workers.start(workers.spec(Role.DECODE, model="fake?step_s=0.01&blocks=15"))
    pair = await connect_pair(prefill, decode)
    for name in ("a", "b", "c"):
        pair.start(name, PROMPT, 20)  # each needs 15 blocks
    for name in ("a", "b", "c"):
        assert await pair.finished(name) == expected(PROMPT, 20)
    await pair.idle()


async def at_once(pair: Pair) -> None:
    """Nothing was heard of the request."""


async def scheduled(pair: Pair) -> None:
    """Credit was given, the prompt's first blocks are computed and copied."""
    await pair.prefill.until(lambda: pair.prefill.about("a").scheduled)


async def handing_over(pair: Pair) -> None:
    """The prompt is complete, decode copies its end."""
    await pair.prefill.until(lambda: pair.prefill.about("a").tokens)


async def decoding(pair: Pair) -> None:
    await pair.decode.until(lambda: pair.decode.about("a").tokens)


Moment = Callable[[Pair], Awaitable[None]]
EARLY = pytest.mark.parametrize("moment", [at_once, scheduled])
EVERY = pytest.mark.parametrize("moment", [at_once, scheduled, handing_over, decoding])


@EVERY
async def test_cancel_in_every_phase_frees_both_sides(pair: Pair, moment: Moment) -> None:
    pair.start("a", PROMPT, 100)
    await moment(pair)
    pair.cancel("a")
    await pair.idle()
    assert_cancelled(pair, "a")
    pair.start("b", PROMPT, 5)
    assert await pair.finished("b") == expected(PROMPT, 5)


async def test_cancel_while_waiting_for_credit_frees_both_sides(workers: Workers) -> None:
    prefill = workers.start(workers.spec(Role.PREFILL, model="fake?step_s=0.01"))
    decode = workers.start(workers.spec(Role.DECODE, model="fake?step_s=0.05&blocks=35"))
    pair = await connect_pair(prefill, decode)
    pair.start("first", PROMPT, 100)  # all 35 blocks
    await pair.decode.until(lambda: pair.decode.about("first").tokens)
    pair.start("a", PROMPT, 100)
    await pair.prefill.status_where(lambda s: s.waiting)
    await pair.decode.status_where(lambda s: s.waiting)
    pair.cancel("a")
    await pair.prefill.status_where(lambda s: not s.waiting)
    await pair.decode.status_where(lambda s: not s.waiting)
    pair.cancel("first")
    await pair.idle()
    assert_cancelled(pair, "a")


@EVERY
async def test_a_gateway_that_leaves_cancels_both_phases(
    workers: Workers, processes: tuple[Process, Process], moment: Moment
) -> None:
    watching = await connect_pair(*processes)
    leaving = await connect_pair(*processes)
    leaving.start("a", PROMPT, 100)
    await moment(leaving)
    leaving.prefill.abort()
    leaving.decode.abort()
    await watching.idle()


@EARLY
async def test_kill_of_decode_frees_prefill_and_tells(processes: tuple[Process, Process], moment: Moment) -> None:
    pair = await connect_pair(*processes)
    pair.start("a", PROMPT, 100)
    await moment(pair)
    processes[1].kill()
    await pair.decode.until(lambda: pair.decode.closed)
    await pair.prefill.until(lambda: pair.prefill.about("a").ended)
    failed = pair.prefill.about("a").failed
    assert failed is not None
    assert (failed.code, failed.retryable) == (ErrorCode.PEER_LOST, True)
    await pair.prefill.status_where(lambda s: not (s.running or s.waiting or s.transfers or s.blocks_used))


async def test_kill_of_decode_after_the_handover_leaves_prefill_alone(processes: tuple[Process, Process]) -> None:
    pair = await connect_pair(*processes)
    pair.start("a", PROMPT, 100)
    await pair.decode.until(lambda: pair.decode.about("a").tokens)
    processes[1].kill()
    await pair.prefill.status_where(lambda s: not (s.running or s.transfers or s.blocks_used))
    assert pair.prefill.about("a").failed is None


@EARLY
async def test_kill_of_prefill_frees_decode_and_tells(processes: tuple[Process, Process], moment: Moment) -> None:
    pair = await connect_pair(*processes)
    pair.start("a", PROMPT, 100)
    await moment(pair)
    processes[0].kill()
    await pair.decode.until(lambda: pair.decode.about("a").ended)
    failed = pair.decode.about("a").failed
    assert failed is not None
    assert (failed.code, failed.retryable) == (ErrorCode.PEER_LOST, True)
    await pair.decode.status_where(lambda s: not (s.running or s.waiting or s.transfers or s.blocks_used))


async def test_kill_of_prefill_after_the_handover_does_not_matter(processes: tuple[Process, Process]) -> None:
    pair = await connect_pair(*processes)
    pair.start("a", PROMPT, 30)
    await pair.decode.until(lambda: pair.decode.about("a").tokens)
    processes[0].kill()
    await pair.decode.until(lambda: pair.decode.about("a").ended)
    assert pair.tokens("a") == expected(PROMPT, 30)


async def test_a_restarted_prefill_worker_is_dialled_again(
    workers: Workers, processes: tuple[Process, Process]
) -> None:
    pair = await connect_pair(*processes)
    pair.start("a", PROMPT, 3)
    await pair.finished("a")
    processes[0].kill()
    processes[0].wait()
    again = workers.start(workers.spec(Role.PREFILL, name="p", model="fake"))
    pair = Pair(await again.ready(), pair.decode, again.spec.endpoint)
    pair.start("b", PROMPT, 6)
    assert await pair.finished("b") == expected(PROMPT, 6)


@pytest.mark.parametrize("stopped", [0, 1])
async def test_a_stopped_peer_is_noticed_by_its_silence(processes: tuple[Process, Process], stopped: int) -> None:
    pair = await connect_pair(*processes)
    pair.start("a", PROMPT, 100)
    await pair.prefill.until(lambda: pair.prefill.about("a").scheduled)
    processes[stopped].kill(signal.SIGSTOP)
    told = (pair.decode, pair.prefill)[stopped]
    await told.until(lambda: told.about("a").ended)
    failed = told.about("a").failed
    assert failed is not None
    assert (failed.code, failed.retryable) == (ErrorCode.PEER_LOST, True)
    await told.status_where(lambda s: not (s.running or s.waiting or s.transfers or s.blocks_used))
    processes[stopped].kill(signal.SIGCONT)
    other = (pair.prefill, pair.decode)[stopped]
    await other.status_where(lambda s: not (s.running or s.waiting or s.transfers or s.blocks_used))
    pair.start("b", PROMPT, 5)
    assert await pair.finished("b") == expected(PROMPT, 5)


async def test_prefill_without_its_decode_half_fails_by_deadline(pair: Pair) -> None:
    frame = prefill_frame("a", pair.prefill.welcome, PROMPT, 5, decode=pair.decode.welcome.address)
    pair.prefill.send(frame)
    await pair.prefill.until(lambda: pair.prefill.about("a").ended)
    failed = pair.prefill.about("a").failed
    assert failed is not None
    assert failed.code is ErrorCode.PEER_LOST
    await pair.idle()


async def test_decode_without_its_prefill_half_fails_by_deadline(pair: Pair) -> None:
    await send_decode(pair, pair.prefill.welcome.address, pair.prefill_endpoint)
    failed = pair.decode.about("a").failed
    assert failed is not None
    assert failed.code is ErrorCode.DEADLINE
    await pair.idle()


async def send_decode(pair: Pair, address: Address, endpoint: str) -> None:
    pair.decode.send(decode_frame("a", pair.decode.welcome, PROMPT, 5, prefill=address, endpoint=endpoint))
    await pair.decode.until(lambda: pair.decode.about("a").ended)


async def test_a_stale_prefill_epoch_is_not_pulled_from(pair: Pair) -> None:
    stale = Address(worker=pair.prefill.welcome.address.worker, epoch=1)
    await send_decode(pair, stale, pair.prefill_endpoint)
    failed = pair.decode.about("a").failed
    assert failed is not None
    assert (failed.code, failed.retryable) == (ErrorCode.PEER_LOST, True)
    assert "stale_epoch" in failed.message


@pytest.mark.parametrize("endpoint", ["unix:/nonexistent.sock", "tcp:127.0.0.1:9", "nonsense"])
async def test_an_unreachable_prefill_worker_fails_the_request_only(pair: Pair, endpoint: str) -> None:
    await send_decode(pair, Address(worker="nobody", epoch=3), endpoint)
    assert pair.decode.about("a").failed is not None
    pair.start("b", PROMPT, 5)
    assert await pair.finished("b") == expected(PROMPT, 5)


async def test_other_revisions_do_not_exchange_blocks(workers: Workers) -> None:
    prefill = workers.start(workers.spec(Role.PREFILL, model="fake"))
    decode = workers.start(workers.spec(Role.DECODE, model="fake", revision="r2"))
    pair = await connect_pair(prefill, decode)
    await send_decode(pair, pair.prefill.welcome.address, pair.prefill_endpoint)
    failed = pair.decode.about("a").failed
    assert failed is not None
    assert "revision" in failed.message


async def test_roles_refuse_what_is_not_theirs(pair: Pair) -> None:
    pair.decode.send(prefill_frame("a", pair.decode.welcome, PROMPT, 5))
    pair.prefill.send(prefill_frame("b", pair.prefill.welcome, PROMPT, 5))
    address, endpoint = pair.prefill.welcome.address, pair.prefill_endpoint
    pair.prefill.send(decode_frame("c", pair.prefill.welcome, PROMPT, 5, prefill=address, endpoint=endpoint))
    pair.prefill.send(prefill_frame("d", pair.prefill.welcome, PROMPT, 1))
    await pair.decode.until(lambda: pair.decode.about("a").failed)
    await pair.prefill.until(lambda: pair.prefill.about("b").failed and pair.prefill.about("c").failed)
    await pair.prefill.until(lambda: pair.prefill.about("d").ended)
    assert pair.prefill.about("d").tokens == {0: expected(PROMPT, 1)[0]}


async def test_draining_prefill_waits_for_its_transfers(processes: tuple[Process, Process]) -> None:
    pair = await connect_pair(*processes)
    pair.start("a", PROMPT, 20)
    await pair.prefill.until(lambda: pair.prefill.about("a").scheduled)
    processes[0].kill(signal.SIGTERM)
    assert await pair.finished("a") == expected(PROMPT, 20)
    assert await asyncio.to_thread(processes[0].wait) == 0


async def test_draining_decode_finishes_what_it_took(processes: tuple[Process, Process]) -> None:
    pair = await connect_pair(*processes)
    pair.start("a", PROMPT, 20)
    await pair.prefill.until(lambda: pair.prefill.about("a").scheduled)
    processes[1].kill(signal.SIGTERM)
    assert await pair.finished("a") == expected(PROMPT, 20)
    assert await asyncio.to_thread(processes[1].wait) == 0


async def test_deadline_while_decoding(processes: tuple[Process, Process]) -> None:
    """The fake engine leaves deadlines of running requests to the worker's own sweep. The prompt takes two seconds, the
    answer ten more; where the machine is slow the deadline passes before, and is told just the same.
    """
    pair = await connect_pair(*processes)
    pair.start("a", PROMPT, 200, deadline_s=3.0)
    await pair.decode.until(lambda: pair.decode.about("a").ended)
    failed = pair.decode.about("a").failed
    assert failed is not None
    assert (failed.code, failed.retryable) == (ErrorCode.DEADLINE, False)
    await pair.idle()


async def test_two_prefill_workers_feed_one_decode_worker(workers: Workers, processes: tuple[Process, Process]) -> None:
    second = workers.start(workers.spec(Role.PREFILL, name="q", model="fake"))
    one = await connect_pair(*processes)
    two = Pair(await second.ready(), one.decode, second.spec.endpoint)
    one.start("a", PROMPT, 10)
    two.start("b", PROMPT[::-1], 10)
    assert await one.finished("a") == expected(PROMPT, 10)
    assert await two.finished("b") == expected(PROMPT[::-1], 10)


async def test_an_agent_watches_both(pair: Pair) -> None:
    from workers.protocol import PeerKind

    agent = await Client.connect(pair.decode.path, kind=PeerKind.AGENT)
    await agent.status_where(lambda status: status.blocks_total == 64)
