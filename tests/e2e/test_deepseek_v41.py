"""V4.1 is a model like any other: made, added, deployed, chatted with, in one worker and split over two."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.waiting import until
from tests.running import ROOT, System

pytestmark = pytest.mark.e2e

MODEL = "v41-nano"
QUESTION = "Which plates go to table nine? " * 12


def manage(system: System, *arguments: str) -> str:
    command = [sys.executable, "manage.py", *arguments]
    done = subprocess.run(command, cwd=ROOT, env=system.environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, f"{' '.join(arguments)}: {done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def nano(system: System, tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    """Deployed twice: `whole` in one worker, `split` over a pair."""
    folder: Path = tmp_path_factory.mktemp("nano") / MODEL
    manage(system, "models", "make-nano", str(folder))
    manage(system, "models", "add", MODEL, str(folder))
    # To the bit: caches in four and eight bits turn rounding into other codes, and noise into other tokens.
    settings = '{"pool_blocks": 256, "max_batch_tokens": 64, "batch_invariant": true}'
    manage(system, "fleet", "deploy", "whole", MODEL, "--both", "1", "--engine", settings)
    manage(system, "fleet", "deploy", "split", MODEL, "--engine", settings)
    until("all workers of v41-nano are ready", lambda: _all_ready(system), 120, every_s=1.0)
    yield system
    for name in ("whole", "split"):
        manage(system, "fleet", "stop", name)
    until("the workers of v41-nano end", lambda: not _workers(system), every_s=1.0)


def _workers(system: System) -> dict[tuple[str, str], str]:
    """(deployment, role) to state."""
    workers = json.loads(manage(system, "fleet", "list", "--json"))["workers"]
    return {(w["deployment"], w["role"]): w["state"] for w in workers if w["deployment"] in ("whole", "split")}


def _all_ready(system: System) -> bool:
    wanted = {("whole", "both"), ("split", "prefill"), ("split", "decode")}
    return _workers(system) == dict.fromkeys(wanted, "ready")


def answer(system: System, name: str, question: str) -> tuple[str, int]:
    """The whole streamed text, and how many tokens of the prompt were cached."""
    stream = system.client(timeout=120).chat.completions.create(
        model=name,
        messages=[{"role": "user", "content": question}],
        stream=True,
        stream_options={"include_usage": True},
        temperature=0,
        max_tokens=24,
        extra_body={"thinking": {"type": "disabled"}},  # DeepSeek's models sample at 1.0 while they think
    )
    chunks = list(stream)
    usage = chunks[-1].usage
    assert usage is not None
    assert usage.completion_tokens > 0
    assert usage.prompt_tokens_details is not None
    delta = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
    text = "".join((d.content or "") + (getattr(d, "reasoning_content", None) or "") for d in delta)
    return text, usage.prompt_tokens_details.cached_tokens or 0


def test_one_worker_and_a_pair_say_the_same_cold_and_cached(nano: System) -> None:
    cold, cached = answer(nano, "whole", QUESTION)
    assert cached == 0
    again, cached = answer(nano, "whole", QUESTION)
    assert (again, cached >= 32, cached % 32) == (cold, True, 0)
    for _ in range(2):
        text, cached = answer(nano, "split", QUESTION)
        assert text == cold
    assert cached >= 32


def test_rows_that_the_tail_saves_are_in_the_metrics(nano: System) -> None:
    answer(nano, "whole", "Another question, about the soup of the day. " * 12)
    lines = until("the counter", lambda: _saved(nano))
    assert {line.split('layer="')[1].split('"')[0] for line in lines} == {str(layer) for layer in range(5, 12)}


def _saved(system: System) -> list[str]:
    return [line for line in system.get("/metrics").text.splitlines() if line.startswith("galley_prefill_rows_saved")]
