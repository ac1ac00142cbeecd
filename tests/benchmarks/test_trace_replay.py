"""Trace replay through the real store and the real block pool, on a few requests of both public traces."""

from __future__ import annotations

import json
import os
from pathlib import Path

import msgspec
import pytest

from benchmarks import traces
from benchmarks.trace_replay import Figures, main

TRACES = Path(__file__).resolve().parents[3] / "shared" / "traces"
CHAT = "conversation_trace.jsonl.zst"
AGENT = "claudecode_kvtester.jsonl.zst"

pytestmark = pytest.mark.integration


def trace_file(name: str) -> Path:
    path = TRACES / name
    if not path.exists():
        message = f"{path} is not here"
        if os.environ.get("CI") == "true":
            pytest.fail(message)
        pytest.skip(message)
    return path


def replay(name: str, *arguments: str) -> Figures:
    return main(["--trace", str(trace_file(name)), *arguments])


def repeatable(figures: Figures) -> dict[str, object]:
    return {name: value for name, value in msgspec.to_builtins(figures).items() if name != "timing"}


def test_chat_with_room_is_ideal_and_the_json_says_so(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    figures = replay(CHAT, "--requests", "200", "--json", str(out))
    assert figures.token_hit_rate == pytest.approx(figures.ideal_token_hit_rate, abs=0.01)
    assert figures.ideal_token_hit_rate > 0.05
    assert figures.pool_hit_tokens + figures.store_hit_tokens + figures.miss_tokens == figures.prompt_tokens
    written = json.loads(out.read_text())
    assert written["token_hit_rate"] == figures.token_hit_rate
    assert written["ideal_token_hit_rate"] == figures.ideal_token_hit_rate
    assert written["effective_prefill_tokens_per_s"] is None
    assert written["cold_prefill_tokens_per_s"] is None
    assert "load" in written["machine"]


def test_the_same_seed_gives_the_same_figures() -> None:
    arguments = ("--requests", "150", "--lru-share", "0.3", "--pool-blocks", "0", "--payload-bytes", "1000")
    first, again = replay(CHAT, *arguments), replay(CHAT, *arguments)
    assert repeatable(first) == repeatable(again)
    assert first.evicted_blocks > 0
    assert first.token_hit_rate < first.ideal_token_hit_rate


def test_agent_sessions_through_a_small_pool_hit_the_store() -> None:
    figures = replay(AGENT, "--requests", "1", "--overlap", "1", "--pool-blocks", "1000", "--payload-bytes", "64")
    assert figures.sessions == 1
    assert figures.token_hit_rate == pytest.approx(figures.ideal_token_hit_rate, abs=0.005)
    assert figures.store_hit_tokens > 0
    assert figures.bytes_read > 0


def test_sessions_overlap_and_keep_their_order() -> None:
    trace = traces.load(trace_file(AGENT), requests=1000, seed=3, scale=16)
    assert trace.overlap >= traces.OVERLAP
    assert trace.block_tokens == 4
    assert [request.at for request in trace.requests] == sorted(request.at for request in trace.requests)
    again = traces.load(trace_file(AGENT), requests=1000, seed=3, scale=16)
    assert trace.requests == again.requests
    other = traces.load(trace_file(AGENT), requests=1000, seed=4, scale=16)
    assert trace.requests != other.requests


@pytest.mark.parametrize(("name", "requests", "rate"), [(CHAT, None, 0.374), (AGENT, 3000, 0.954)])
def test_the_ideal_is_the_documented_one(name: str, requests: int | None, rate: float) -> None:
    trace = traces.load(trace_file(name), requests=requests, seed=0, overlap=1)
    assert traces.ideal(trace).rate == pytest.approx(rate, abs=0.001)
