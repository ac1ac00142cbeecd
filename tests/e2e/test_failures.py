"""What clients see when processes die under them, and when they leave themselves."""

from __future__ import annotations

import http.client
import json
import os
import signal
import time
from collections.abc import Iterator
from urllib.parse import urlsplit

import openai
import pytest
from openai.types.chat import ChatCompletionChunk

from tests.e2e.waiting import until
from tests.reporting import Report
from tests.running import MODEL, System
from workers.protocol import Role

pytestmark = pytest.mark.e2e

LONG = 2000
"""Output tokens of a request that shall still be running when something happens to it."""


@pytest.fixture(autouse=True)
def settled(system: System) -> None:
    """What an earlier test broke has healed, and nothing runs."""
    until("the system is ready", lambda: system.get("/readyz").status_code == 200, timeout_s=120)
    until("both workers are idle", lambda: idle(system), timeout_s=30)


def stream(system: System, max_tokens: int = LONG) -> openai.Stream[ChatCompletionChunk]:
    return system.client(timeout=60).chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "Tell me a very long story about a kitchen."}],
        stream=True,
        max_tokens=max_tokens,
        temperature=0,  # the greedy answer goes on for hundreds of tokens
    )


def texts(chunks: Iterator[ChatCompletionChunk]) -> Iterator[str]:
    for chunk in chunks:
        if chunk.choices and chunk.choices[0].delta.content:
            yield chunk.choices[0].delta.content


def take(chunks: Iterator[str], count: int) -> list[str]:
    return [next(chunks) for _ in range(count)]


def complete(system: System) -> str:
    """An ordinary request, without any retry: one that finds a worker on its way back waits for it."""
    answer = system.client(timeout=120).chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": "Say hello."}], max_tokens=12
    )
    return answer.choices[0].message.content or ""


def restarted(system: System, role: Role, old_pid: int) -> bool:
    engine = system.engines().get(role)
    return engine is not None and engine.pid != old_pid


def test_decode_killed_in_mid_stream(system: System, report: Report) -> None:
    engine = system.engines()[Role.DECODE]
    epoch = system.snapshots()[Role.DECODE].address.epoch
    chunks = texts(stream(system))
    take(chunks, 5)
    engine.kill()
    with pytest.raises(openai.APIError) as failure:
        for _ in chunks:
            pass
    assert not isinstance(failure.value, openai.APIConnectionError), "the stream was cut instead of ended by an error"
    report(f"decode killed, the client saw: {failure.value.message}")
    assert "worker" in failure.value.message.lower()
    assert complete(system)
    assert restarted(system, Role.DECODE, engine.pid)
    assert system.snapshots()[Role.DECODE].address.epoch > epoch


def test_prefill_killed_while_decode_goes_on(system: System) -> None:
    engine = system.engines()[Role.PREFILL]
    chunks = texts(stream(system, max_tokens=120))
    take(chunks, 5)
    engine.kill()
    assert len(list(chunks)) > 20, "decode holds all it needs: the stream goes on"
    assert complete(system)
    assert restarted(system, Role.PREFILL, engine.pid)


def test_a_client_that_leaves_cancels_both_workers(system: System, report: Report) -> None:
    before = cancelled(system)
    running = stream(system)
    take(texts(running), 5)
    running.close()
    left = time.monotonic()
    until("decode is idle again", lambda: idle(system), timeout_s=60)
    report(f"idle {time.monotonic() - left:.1f} s after the client left (snapshots come once a second)")
    after = cancelled(system)
    assert after[Role.DECODE] == before[Role.DECODE] + 1


def test_a_client_that_leaves_during_prefill(system: System) -> None:
    before = cancelled(system)
    body = {
        "model": MODEL,
        "messages": [{"role": "user", "content": f"{time.time_ns()} " + "word " * 6000}],
        "stream": True,
        "max_tokens": 5,
    }
    address = urlsplit(system.url)
    connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=60)
    connection.request(
        "POST",
        "/v1/chat/completions",
        json.dumps(body),
        {"Authorization": f"Bearer {system.first_run['api_key']}", "Content-Type": "application/json"},
    )
    until("prefill computes", lambda: system.snapshots()[Role.PREFILL].running > 0, timeout_s=60)
    connection.close()
    until("both workers are idle again", lambda: idle(system), timeout_s=60)
    after = cancelled(system)
    assert after[Role.PREFILL] == before[Role.PREFILL] + 1


def reconciled(system: System, since: float) -> bool:
    """Whether an agent that started after `since` compared wanted and running workers more than twice."""
    beat = system.agent()
    return beat is not None and beat.started_at > since and beat.turns > 2 and beat.workers == 2


def idle(system: System) -> bool:
    found = system.snapshots()
    return len(found) == 2 and all(s.running + s.waiting + s.transfers == 0 for s in found.values())


def cancelled(system: System) -> dict[Role, int]:
    return {role: snapshot.finished.get("cancelled", 0) for role, snapshot in system.snapshots().items()}


def test_an_agent_that_comes_back_adopts_its_engines(system: System) -> None:
    engines = {role: process.pid for role, process in system.engines().items()}
    assert set(engines) == {Role.PREFILL, Role.DECODE}
    for signum in (signal.SIGTERM, signal.SIGKILL):
        killed_at = time.time()
        os.kill(system.recorded()["agent"], signum)
        until("a new agent reconciled a few times", lambda since=killed_at: reconciled(system, since), timeout_s=90)
    assert {role: process.pid for role, process in system.engines().items()} == engines
    assert complete(system)
