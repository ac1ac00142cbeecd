"""One worker process in role both, over its socket: greeting, admission, cancel, drain, slow peers."""

from __future__ import annotations

import asyncio
import json
import signal
import sys

import msgspec
import pytest

from tests.workers.conftest import Workers
from tests.workers.fake_engine import expected
from tests.workers.protocol_client import Client, prefill_frame
from workers.protocol import (
    Address,
    Cancel,
    Drain,
    ErrorCode,
    Finish,
    PeerKind,
    Ping,
    Pong,
    RequestId,
    Role,
    WorkerState,
)
from workers.spec import EngineSettings

PROMPT = list(range(1, 19))


async def test_a_request_runs_to_its_length(both: Client) -> None:
    both.send(prefill_frame("a", both.welcome, PROMPT, 12))
    heard = both.about("a")
    await both.until(lambda: heard.ended)
    assert [heard.tokens[index] for index in range(12)] == expected(PROMPT, 12)
    assert heard.finish is Finish.LENGTH
    assert heard.scheduled is not None
    assert heard.scheduled.pool_hit_tokens + heard.scheduled.miss_tokens == 18


async def test_the_second_time_the_prefix_is_a_hit(both: Client) -> None:
    for name in ("a", "b"):
        both.send(prefill_frame(name, both.welcome, PROMPT, 3))
        await both.until(lambda name=name: both.about(name).ended)
    scheduled = both.about("b").scheduled
    assert scheduled is not None
    assert (scheduled.pool_hit_tokens, scheduled.miss_tokens) == (16, 2)
    assert both.about("a").tokens == both.about("b").tokens


async def test_a_stop_token_ends_the_request(both: Client) -> None:
    third = expected(PROMPT, 3)[2]
    both.send(prefill_frame("a", both.welcome, PROMPT, 12, stop=(third,)))
    heard = both.about("a")
    await both.until(lambda: heard.ended)
    assert heard.finish is Finish.STOP
    assert heard.tokens[2] == third


async def test_many_at_once_share_frames(both: Client) -> None:
    prompts = {f"r{n}": [n + 1, n + 2, n + 3] for n in range(8)}
    for name, prompt in prompts.items():
        both.send(prefill_frame(name, both.welcome, prompt, 10))
    await both.until(lambda: all(both.about(name).ended for name in prompts))
    for name, prompt in prompts.items():
        assert [both.about(name).tokens[index] for index in range(10)] == expected(prompt, 10)
    token_frames = [frame for frame in both.frames if type(frame).__name__ == "Tokens"]
    assert len(token_frames) < 40


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"epoch": 1}, ErrorCode.STALE_EPOCH),
        ({"prompt": [5000]}, ErrorCode.INVALID),
        ({"prompt": []}, ErrorCode.INVALID),
        ({"max_tokens": 1000}, ErrorCode.CONTEXT_LENGTH),
        ({"deadline_s": 0.0}, ErrorCode.DEADLINE),
    ],
)
async def test_what_cannot_run_is_refused(both: Client, change: dict[str, object], code: ErrorCode) -> None:
    arguments = {"prompt": PROMPT, "max_tokens": 4} | change
    both.send(prefill_frame("a", both.welcome, **arguments))  # type: ignore[arg-type]
    await both.until(lambda: both.about("a").ended)
    failed = both.about("a").failed
    assert failed is not None
    assert failed.code is code


async def test_a_running_id_is_not_taken_twice(both: Client) -> None:
    other = await Client.connect(both.path, peer="other")
    both.send(prefill_frame("a", both.welcome, PROMPT, 220))
    await both.until(lambda: both.about("a").tokens)
    other.send(prefill_frame("a", other.welcome, PROMPT, 4))
    await other.until(lambda: other.about("a").ended)
    assert other.about("a").failed is not None
    await both.until(lambda: both.about("a").ended)
    assert len(both.about("a").tokens) == 220


async def test_too_many_are_refused(workers: Workers) -> None:
    engine = EngineSettings(max_queue=2, max_running=1)
    client = await workers.start(workers.spec(Role.BOTH, model="fake?step_s=0.1&blocks=8", engine=engine)).ready()
    for number in range(6):
        client.send(prefill_frame(f"r{number}", client.welcome, PROMPT, 10))
    await client.until(lambda: client.about("r5").ended)
    failed = client.about("r5").failed
    assert failed is not None
    assert failed.code is ErrorCode.QUEUE_FULL
    assert failed.retryable


async def test_cancel_frees_everything(both: Client) -> None:
    both.send(prefill_frame("a", both.welcome, PROMPT, 220))
    await both.until(lambda: len(both.about("a").tokens) > 3)
    both.send(Cancel(request_id=RequestId("a")))
    both.send(Cancel(request_id=RequestId("unknown")))
    await both.status_where(lambda status: status.running == 0 and status.blocks_used == 0)
    assert not both.about("a").ended
    both.send(prefill_frame("b", both.welcome, PROMPT, 3))
    await both.until(lambda: both.about("b").ended)
    assert both.about("b").finish is Finish.LENGTH


async def test_a_gateway_that_leaves_cancels_its_requests(both: Client) -> None:
    other = await Client.connect(both.path, peer="other")
    other.send(prefill_frame("a", other.welcome, PROMPT, 200))
    await other.until(lambda: other.about("a").tokens)
    other.abort()
    await both.status_where(lambda status: status.running == 0 and status.blocks_used == 0)


async def test_another_gateways_request_cannot_be_cancelled(both: Client) -> None:
    other = await Client.connect(both.path, peer="other")
    both.send(prefill_frame("a", both.welcome, PROMPT, 30))
    await both.until(lambda: both.about("a").tokens)
    other.send(Cancel(request_id=RequestId("a")))
    await both.until(lambda: both.about("a").ended)
    assert both.about("a").finish is Finish.LENGTH


async def test_a_stale_greeting_is_refused(both: Client) -> None:
    stale = Address(worker=both.welcome.address.worker, epoch=1)
    with pytest.raises(ConnectionRefusedError, match="stale_epoch"):
        await Client.connect(both.path, expect=stale)


async def test_a_frame_out_of_place_ends_the_connection_only(both: Client) -> None:
    agent = await Client.connect(both.path, kind=PeerKind.AGENT)
    agent.send(prefill_frame("a", agent.welcome, PROMPT, 4))
    await agent.until(lambda: agent.closed)
    both.send(Ping(7))
    await both.until(lambda: Pong(7) in both.frames)


async def test_a_peer_that_does_not_read_is_dropped_and_holds_nobody_up(both: Client) -> None:
    slow = await Client.connect(both.path, peer="slow")
    slow.stop_reading()
    for _ in range(400_000):
        slow.send(Ping(1))
    both.send(prefill_frame("a", both.welcome, PROMPT, 20))
    await both.until(lambda: both.about("a").ended)
    assert both.about("a").finish is Finish.LENGTH
    with pytest.raises(ConnectionError):
        await ping_on(slow)


async def ping_on(client: Client) -> None:
    async with asyncio.timeout(20):
        while True:
            client.send(Ping(1))
            await client.flush()
            await asyncio.sleep(0.001)


async def test_loading_greets_and_refuses_requests(workers: Workers) -> None:
    process = workers.start(workers.spec(Role.BOTH, model="fake?load_s=2"))
    client = await process.connect()
    assert client.welcome.state is WorkerState.LOADING
    client.send(prefill_frame("a", client.welcome, PROMPT, 4))
    await client.until(lambda: client.about("a").ended)
    failed = client.about("a").failed
    assert failed is not None
    assert (failed.code, failed.retryable) == (ErrorCode.NOT_READY, True)
    await client.status_where(lambda status: status.state is WorkerState.READY)
    client.send(prefill_frame("b", client.welcome, PROMPT, 4))
    await client.until(lambda: client.about("b").ended)
    assert client.about("b").finish is Finish.LENGTH


async def test_sigterm_finishes_what_runs(workers: Workers) -> None:
    process = workers.start(workers.spec(Role.BOTH, model="fake?step_s=0.1"))  # four seconds to notice the draining in
    client = await process.ready()
    client.send(prefill_frame("a", client.welcome, PROMPT, 40))
    await client.until(lambda: client.about("a").tokens)
    process.kill(signal.SIGTERM)
    await client.status_where(lambda status: status.state is WorkerState.DRAINING)
    client.send(prefill_frame("b", client.welcome, PROMPT, 4))
    await client.until(lambda: client.closed)
    assert len(client.about("a").tokens) == 40
    failed = client.about("b").failed
    assert failed is not None
    assert failed.code is ErrorCode.NOT_READY
    assert process.wait() == 0


async def test_past_the_drain_deadline_requests_are_cut_and_told(workers: Workers) -> None:
    process = workers.start(workers.spec(Role.BOTH, model="fake?step_s=0.2", drain_deadline_s=0.5))
    client = await process.ready()
    client.send(prefill_frame("a", client.welcome, PROMPT, 200))
    await client.until(lambda: client.about("a").tokens)
    process.kill(signal.SIGTERM)
    await client.until(lambda: client.closed)
    failed = client.about("a").failed
    assert failed is not None
    assert (failed.code, failed.retryable) == (ErrorCode.NOT_READY, True)
    assert process.wait() == 0


async def test_a_second_sigterm_ends_at_once(workers: Workers) -> None:
    process = workers.start(workers.spec(Role.BOTH, model="fake?step_s=0.2", drain_deadline_s=300.0))
    client = await process.ready()
    client.send(prefill_frame("a", client.welcome, PROMPT, 200))
    await client.until(lambda: client.about("a").tokens)
    process.kill(signal.SIGTERM)
    await client.status_where(lambda status: status.state is WorkerState.DRAINING)
    process.kill(signal.SIGTERM)
    assert process.wait() == 0


async def test_an_agents_drain_frame_drains(workers: Workers) -> None:
    process = workers.start(workers.spec(Role.BOTH))
    agent = await process.ready(kind=PeerKind.AGENT)
    agent.send(Drain(deadline_s=1.0))
    assert await asyncio.to_thread(process.wait) == 0


async def test_a_hung_engine_shows_in_the_age_of_its_step(workers: Workers) -> None:
    process = workers.start(workers.spec(Role.BOTH, model="fake?hang_at=4"))
    client = await process.ready()
    client.send(prefill_frame("a", client.welcome, PROMPT, 40, deadline_s=1.0))
    status = await client.status_where(lambda status: status.step_age_s > 1.0)
    assert status.state is WorkerState.READY
    client.send(Ping(3))
    await client.until(lambda: Pong(3) in client.frames)
    await client.until(lambda: client.about("a").ended)
    failed = client.about("a").failed
    assert failed is not None
    assert failed.code is ErrorCode.DEADLINE
    process.kill(signal.SIGTERM)
    process.kill(signal.SIGTERM)
    assert await asyncio.to_thread(process.wait) == 0


@pytest.mark.parametrize("damage", ["spec", "model", "load", "tcp"])
async def test_what_cannot_be_served_ends_with_status_3(workers: Workers, damage: str) -> None:
    spec = workers.spec(Role.BOTH, model="fake?fail_load=1" if damage == "load" else "fake")
    if damage == "model":
        spec = msgspec.structs.replace(spec, model_path="/nonexistent")
    if damage == "tcp":
        spec = msgspec.structs.replace(spec, endpoint="tcp:127.0.0.1:1")
    process = workers.start(spec)
    if damage == "spec":
        process.kill()
        process.wait()
        process = workers.start(spec, program=[sys.executable, "-m", "workers.serve", "/nonexistent.json"])
        assert await asyncio.to_thread(process.wait) != 0
        return
    assert await asyncio.to_thread(process.wait) == 3


async def test_log_lines_are_json(workers: Workers) -> None:
    process = workers.start(workers.spec(Role.BOTH))
    client = await process.ready()
    client.send(prefill_frame("a", client.welcome, PROMPT, 4))
    await client.until(lambda: client.about("a").ended)
    lines = [json.loads(line) for line in process.log.read_text().splitlines()]
    ended = next(line for line in lines if line["event"] == "request ended")
    assert (ended["request_id"], ended["how"], ended["output_tokens"]) == ("a", "length", 4)
    assert {line["worker"] for line in lines} == {"both-0"}
