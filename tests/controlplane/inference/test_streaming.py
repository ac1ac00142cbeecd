"""Replies as bytes: order of events, keep-alives, errors in mid-stream, ownership of the work, what is counted."""

from __future__ import annotations

import asyncio
import gc
import json
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from controlplane.accounts.permissions import SYSTEM
from controlplane.inference.admission import Admission
from controlplane.inference.completion import Completion
from controlplane.inference.conversation import ChatModel
from controlplane.inference.errors import ApiError
from controlplane.inference.replies.base import Reply, ReplyFormat
from controlplane.inference.replies.chat import ChatFormat
from controlplane.inference.replies.messages import MessagesFormat
from controlplane.inference.schema.chat import parse_chat
from controlplane.inference.stats import GatewayStats
from controlplane.inference.streaming import Collector, OwnedStream, first_news, late_body, stream_events
from tests.controlplane.inference.conftest import Core, eventually
from tests.controlplane.inference.stub_worker import Script
from workers.protocol import ErrorCode, Role, Sampling


class Desk:
    """Makes completions the way the view does."""

    def __init__(self, core: Core, model: ChatModel) -> None:
        self.core = core
        self.model = model
        self.stats = GatewayStats()
        self.admission = Admission(core.limits)

    async def ask(self, **fields: Any) -> tuple[Reply, Completion]:
        body = {"model": "tiny", "messages": [{"role": "user", "content": "Hello world"}], **fields}
        call = parse_chat(json.dumps(body).encode(), max_choices=4)
        (prompt,) = self.model.prepare(call, 4096)
        sampling = Sampling(max_tokens=prompt.max_tokens, logprobs=call.logprobs)
        completion = Completion(
            [
                self.core.work(request_id=f"req.{index}", tokens=prompt.tokens, sampling=sampling)
                for index in range(call.choices)
            ],
            [prompt.new_output] * call.choices,
            router=self.core.router,
            limits=self.core.limits,
            stats=self.stats,
            admitted=await self.admission.admit(SYSTEM, prompt_tokens=1, max_tokens=1),
            accepted=time.monotonic(),
            streaming=call.stream,
            choices=call.choices,
        )
        reply = Reply(
            id="1",
            created=1,
            call=call,
            tokenizer=self.model.tokenizer,
            thinking=False,
            keepalive_s=self.core.limits.keepalive_s,
        )
        return reply, completion

    def tokens(self, text: str) -> list[int]:
        return [*self.model.tokenizer.encode_foreign(text), 2]


@pytest.fixture
async def desk(core: Core, tiny: ChatModel) -> Desk:
    await core.pair()
    return Desk(core, tiny)


async def body_of(reply: Reply, completion: Completion, form: Callable[[Reply], ReplyFormat] = ChatFormat) -> list[Any]:
    completion.start()
    first = await first_news(completion, reply.keepalive_s)
    parts = [part async for part in OwnedStream(completion, stream_events(reply, form(reply), completion, first))]
    return b"".join(parts).decode().split("\n\n")[:-1]


async def test_events_in_order(desk: Desk) -> None:
    desk.core.cluster.scripts = [Script(tokens=desk.tokens("Hi 🎉"), hit_tokens=5)]
    reply, completion = await desk.ask(stream=True, stream_options={"include_usage": True})
    events = await body_of(reply, completion)
    assert events[-1] == "data: [DONE]"
    chunks = [json.loads(event.removeprefix("data: ")) for event in events[:-1]]
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert "".join(c["choices"][0]["delta"].get("content", "") for c in chunks[:-1]) == "Hi 🎉"
    assert [c["usage"] for c in chunks[:-1]] == [None] * (len(chunks) - 1)
    usage = chunks[-1]["usage"]
    assert usage["prompt_cache_hit_tokens"] == usage["prompt_tokens_details"]["cached_tokens"] == 5
    assert usage["prompt_tokens"] == usage["prompt_cache_hit_tokens"] + usage["prompt_cache_miss_tokens"]
    assert (desk.stats.hit_tokens, desk.stats.output_tokens) == (5, usage["completion_tokens"])
    assert (desk.stats.running, desk.stats.waiting, desk.stats.requests) == (0, 0, {"stop": 1})
    assert sum(desk.stats.ttft_s.counts) == 1
    assert sum(desk.stats.tbt_s.counts) == usage["completion_tokens"] - 1
    assert desk.admission.active == 0


async def test_a_stream_begins_with_what_the_try_that_serves_found_cached(desk: Desk) -> None:
    """The first try fails before it is scheduled: that it is made again says nothing of hits."""
    await desk.core.pair()
    desk.core.cluster.scripts = [
        Script(fail=ErrorCode.QUEUE_FULL),
        Script(tokens=desk.tokens("Hi"), hit_tokens=5, scheduled_delay_s=0.1),
    ]
    start, *_ = await body_of(*await desk.ask(stream=True), MessagesFormat)
    usage = json.loads(start.partition("data: ")[2])["message"]["usage"]
    assert usage["cache_read_input_tokens"] == 5


async def test_comments_while_nothing_comes(desk: Desk) -> None:
    desk.core.cluster.scripts = [Script(tokens=desk.tokens("late"), scheduled_delay_s=1.5)]
    events = await body_of(*await desk.ask(stream=True))
    assert events[:2] == [": keep-alive", ": keep-alive"]
    assert '"role":"assistant"' in next(event for event in events if event.startswith("data"))
    assert events[-1] == "data: [DONE]"


async def test_an_error_in_mid_stream_ends_it(desk: Desk) -> None:
    desk.core.cluster.scripts = [Script(tokens=desk.tokens("a long story"), delay_s=0.02, die_before=2)]
    events = await body_of(*await desk.ask(stream=True))
    error = json.loads(events[-1].removeprefix("data: "))["error"]
    assert error["code"] == "peer_lost"
    assert desk.stats.requests == {"peer_lost": 1}
    assert desk.admission.active == 0


async def test_a_stream_that_is_never_begun_gives_its_work_back(desk: Desk) -> None:
    desk.core.cluster.scripts = [Script(tokens=[300] * 9, hang_before=2)]
    reply, completion = await desk.ask(stream=True)
    completion.start()
    first = await completion.next(1.0)
    stream = OwnedStream(completion, stream_events(reply, ChatFormat(reply), completion, first))
    del stream, completion
    gc.collect()
    await eventually(lambda: desk.stats.requests == {"disconnected": 1})
    for worker in desk.core.cluster.workers.values():
        await eventually(lambda worker=worker: worker.cancelled() == ["req.0"])


async def test_cancelling_the_consumer_cancels_the_work(desk: Desk) -> None:
    desk.core.cluster.scripts = [Script(tokens=[300] * 9, hang_before=2)]
    task = asyncio.create_task(body_of(*await desk.ask(stream=True)))
    await eventually(lambda: desk.stats.running == 1)
    task.cancel()
    await eventually(lambda: desk.stats.requests == {"disconnected": 1})
    assert (desk.stats.running, desk.admission.active) == (0, 0)


async def test_blank_lines_for_a_reply_that_takes_long(desk: Desk) -> None:
    desk.core.cluster.scripts = [Script(tokens=desk.tokens("Hi"), delay_s=0.5)]
    reply, completion = await desk.ask()
    completion.start()
    collector = Collector(ChatFormat(reply), completion, 1)
    while not collector.started:
        assert not await collector.advance(0.1)
    body = b"".join([part async for part in OwnedStream(completion, late_body(reply, completion, collector))])
    assert body.startswith(b"\n\n")
    assert json.loads(body)["choices"][0]["message"]["content"] == "Hi"


async def test_an_error_after_blank_lines_breaks_the_body_off(desk: Desk) -> None:
    desk.core.cluster.scripts = [Script(tokens=desk.tokens("Hi"), delay_s=0.3, die_before=1)]
    reply, completion = await desk.ask()
    completion.start()
    collector = Collector(ChatFormat(reply), completion, 1)
    parts: list[bytes] = []

    async def drain() -> None:
        async for part in OwnedStream(completion, late_body(reply, completion, collector)):
            parts.append(part)

    with pytest.raises(ApiError):
        await drain()
    assert set(parts) == {b"\n"}


async def test_a_restart_is_not_seen_in_a_whole_reply(desk: Desk) -> None:
    await desk.core.pair()
    desk.core.cluster.scripts = [Script(tokens=desk.tokens("wrong"), die_before=2), Script(tokens=desk.tokens("right"))]
    reply, completion = await desk.ask()
    completion.start()
    collector = Collector(ChatFormat(reply), completion, 1)
    assert await collector.advance(20.0)
    document = json.loads(collector.body())
    assert document["choices"][0]["message"]["content"] == "right"
    assert document["usage"]["completion_tokens"] == len(desk.tokens("right"))


TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>'


@pytest.mark.parametrize("heard", [4, len(CALL) // 2, len(CALL) - 3])
async def test_nothing_of_the_first_try_is_in_a_retried_tool_call(desk: Desk, heard: int) -> None:
    """Whatever the first try was amid (a mark, a call's arguments), the second is parsed from its own beginning."""
    await desk.core.pair()
    tokens = desk.tokens(CALL)
    dies = len(desk.model.tokenizer.encode_foreign(CALL[:heard]))
    desk.core.cluster.scripts = [Script(tokens=tokens, die_before=dies), Script(tokens=tokens)]
    reply, completion = await desk.ask(tools=[TOOL])
    completion.start()
    collector = Collector(ChatFormat(reply), completion, 1)
    assert await collector.advance(20.0)
    (choice,) = json.loads(collector.body())["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] is None
    (call,) = choice["message"]["tool_calls"]
    assert call["function"]["name"] == "weather"
    assert json.loads(call["function"]["arguments"]) == {"city": "Paris"}


async def test_nothing_of_the_first_try_is_in_a_retried_text(desk: Desk) -> None:
    """Text that was held back, perhaps the beginning of a stop string, is forgotten."""
    await desk.core.pair()
    desk.core.cluster.scripts = [
        Script(tokens=desk.tokens("well EN"), die_before=len(desk.tokens("well EN")) - 1),
        Script(tokens=desk.tokens("Done")),
    ]
    reply, completion = await desk.ask(stop=["END"])
    completion.start()
    collector = Collector(ChatFormat(reply), completion, 1)
    assert await collector.advance(20.0)
    assert json.loads(collector.body())["choices"][0]["message"]["content"] == "Done"


async def test_the_deadline_ends_a_request_that_hangs(desk: Desk) -> None:
    desk.core.limits = type(desk.core.limits)(deadline_s=0.1)
    desk.core.cluster.scripts = [Script(hang_before=1)]
    reply, completion = await desk.ask()
    completion.start()
    with pytest.raises(ApiError) as caught:
        await Collector(ChatFormat(reply), completion, 1).advance(10.0)
    assert caught.value.status == 504
    assert desk.stats.requests == {ErrorCode.DEADLINE.value: 1}


async def test_beyond_the_bound_is_503(core: Core, tiny: ChatModel) -> None:
    await core.add(Role.BOTH)
    core.limits = type(core.limits)(concurrent_requests=1)
    desk = Desk(core, tiny)
    await desk.ask()
    with pytest.raises(ApiError) as caught:
        await desk.ask()
    assert (caught.value.status, caught.value.retry_after_s) == (503, 1.0)


async def test_a_request_waits_for_a_worker_that_comes_back(desk: Desk) -> None:
    """What a client meets after the only decode worker was killed: keep-alives, then its answer."""
    decode = desk.core.cluster.workers["decode-1"]
    await decode.stop()
    await eventually(lambda: not desk.core.router.usable(desk.core.cluster.deployment))
    desk.core.cluster.scripts = [Script(tokens=desk.tokens("back"))]
    reply, completion = await desk.ask(stream=True)
    completion.start()
    assert await completion.next(0.3) is None, "nothing to say yet, and no error"
    await decode.restart()
    desk.core.connections["decode-1"].renew(decode.lease)
    first = await completion.next(10)
    parts = [part async for part in OwnedStream(completion, stream_events(reply, ChatFormat(reply), completion, first))]
    events = b"".join(parts).decode().split("\n\n")[:-2]
    chunks = [json.loads(event.removeprefix("data: ")) for event in events]
    assert "".join(c["choices"][0]["delta"].get("content", "") for c in chunks) == "back"
    assert desk.stats.requests == {"stop": 1}


async def test_a_worker_that_stays_away_is_503(desk: Desk) -> None:
    desk.core.limits = replace(desk.core.limits, worker_wait_s=0.3)
    await desk.core.cluster.workers["decode-1"].stop()
    await eventually(lambda: not desk.core.router.usable(desk.core.cluster.deployment))
    _, completion = await desk.ask()
    completion.start()
    with pytest.raises(ApiError) as caught:
        await completion.next(10)
    assert (caught.value.status, caught.value.retry_after_s) == (503, 1.0)
    assert desk.stats.requests == {"no_workers": 1}
    assert desk.admission.active == 0


async def test_an_unknown_deployment_is_503_at_once(core: Core, tiny: ChatModel) -> None:
    _, completion = await Desk(core, tiny).ask()
    with pytest.raises(ApiError) as caught:
        completion.start()
    assert caught.value.status == 503
