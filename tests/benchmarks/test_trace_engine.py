"""Sessions through real prefill engines that share a real store, on a trace and a model that are made here."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.trace_ceiling import Shape, full_length_speed_up
from benchmarks.trace_replay import Figures, main
from tests.workers.models.llama.factories import make_folder
from workers.models.add_folder import add_folder
from workers.models.store import ModelStore

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def agents(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three sessions of four requests, each longer by 96 tokens than the one before."""
    path = tmp_path_factory.mktemp("trace") / "agents.jsonl"
    rows = [
        {"session": f"s{session}", "t": 10.0 * turn, "input_length": length, "output_length": 8, "api": 1.0,
         "ids_rle": [[0, -(-length // 64)]]}
        for session in range(3)
        for turn, length in enumerate(range(300 + 7 * session, 600 + 7 * session, 96))
    ]  # fmt: skip
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("llama")
    make_folder(folder / "source", max_position_embeddings=1024)
    store = ModelStore(folder / "models")
    add_folder(store, "tiny", folder / "source")
    return store.folder("tiny")


def replay(agents: Path, model: Path, *arguments: str) -> Figures:
    common = ("--mode", "engine", "--requests", "12", "--overlap", "2", "--scale", "2", "--cold-requests", "3")
    return main(["--trace", str(agents), "--model", str(model), *common, *arguments])


def test_engines_that_share_a_store_hit_the_ideal(agents: Path, llama: Path, tmp_path: Path) -> None:
    figures = replay(agents, llama, "--pool-blocks", "64", "--json", str(tmp_path / "out.json"))
    assert (figures.requests, figures.sessions, figures.concurrent_sessions) == (12, 3, 2)
    assert figures.token_hit_rate == figures.ideal_token_hit_rate > 0.5
    assert figures.store_hit_tokens > 0, "each next turn is on the other engine"
    assert figures.pool_hit_tokens + figures.store_hit_tokens + figures.miss_tokens == figures.prompt_tokens
    written = json.loads((tmp_path / "out.json").read_text())
    for name in ("effective_prefill_tokens_per_s", "cold_prefill_tokens_per_s", "ceiling_prefill_tokens_per_s"):
        assert written[name] > 0
    assert written["token_hit_rate"] == figures.token_hit_rate
    again = replay(agents, llama, "--pool-blocks", "64")
    assert again.token_hit_rate == figures.token_hit_rate


def test_the_ceiling_counts_layer_rows() -> None:
    shape = Shape(early=6, late=6, window=32)
    assert shape.cold(1000) == 1000 * 6 + 32 * 6
    assert shape.warm(1000, 960) == 40 * 6 + 32 * 6
    assert shape.warm(1000, 992) == 32 * 6 + 32 * 6, "the tail runs whole"
    assert shape.cold(10) == shape.warm(10, 0) == 10 * 12


def test_full_lengths_save_more(agents: Path) -> None:
    assert full_length_speed_up(agents, requests=12, seed=0, overlap=2) > 1.5
