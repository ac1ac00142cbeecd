"""The real SmolLM2 against `transformers` in float32 on the same weights (module-wide: each is loaded once)."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer

from tests.workers.engine.factories import Outcome, make_request, run_to_end
from tests.workers.models.llama.factories import Runner
from tests.workers.smollm2 import chat, reference_model
from workers.engine.engine import Engine
from workers.manifest import read_manifest
from workers.models.base import CausalModel
from workers.models.store import cache_identity, load_model
from workers.spec import EngineSettings

QUESTIONS = [
    "What is the capital of France?",
    "Write a haiku about rain.",
    "Explain photosynthesis in two sentences.",
    "What is 17 + 25?",
    "List three primary colours.",
    "Who wrote Hamlet?",
    "Translate 'good morning' to French.",
    "Give me a short poem about the sea.",
    "What does CPU stand for?",
    "How many days are there in a leap year?",
    "Name a mammal that lays eggs.",
    "def fibonacci(n):",
    "Why is the sky blue?",
    "Tell me a joke.",
    "What is the boiling point of water in Celsius?",
    "Summarise: The quick brown fox jumps over the lazy dog.",
    "1, 1, 2, 3, 5, 8, what comes next?",
    "Ünïcödé – can you read this? 你好",
    "What is the opposite of 'hot'?",
    "Write one sentence about Paris in 1889.",
    "x",
]
NEW_TOKENS = 24


@pytest.fixture(scope="module")
def model(smollm2_path: Path) -> CausalModel:
    return load_model(smollm2_path)


@pytest.fixture(scope="module")
def reference() -> Any:
    return reference_model()


@pytest.fixture(scope="module")
def tokenizer(smollm2_path: Path) -> Tokenizer:
    return Tokenizer.from_file(str(smollm2_path / "tokenizer.json"))


@pytest.fixture(scope="module")
def prompts(tokenizer: Tokenizer) -> list[list[int]]:
    return [tokenizer.encode(chat(question)).ids for question in QUESTIONS]


def reference_logits(reference: Any, tokens: list[int]) -> torch.Tensor:
    with torch.no_grad():
        return reference(torch.tensor([tokens])).logits[0]


def make_engine(model: CausalModel, folder: Path, **settings: object) -> Engine:
    values: dict[str, object] = {"pool_blocks": 256, "max_batch_tokens": 256}
    identity = cache_identity(read_manifest(folder), model)
    return Engine(model, EngineSettings(**(values | settings)), identity)  # type: ignore[arg-type]


def test_logits_equal_transformers(model: CausalModel, reference: Any, prompts: list[list[int]]) -> None:
    tokens = [token for prompt in prompts[:6] for token in prompt]
    actual = Runner(model).step(tokens)
    assert (actual - reference_logits(reference, tokens)).abs().max() < 1e-3


def test_greedy_tokens_equal_transformers(
    model: CausalModel, reference: Any, prompts: list[list[int]], smollm2_path: Path
) -> None:
    """All prompts at once, chunked, over shared prefixes from the pool; the reference is taught the same tokens and
    must have chosen each of them.
    """
    engine = make_engine(model, smollm2_path)
    requests = [make_request(prompt, max_tokens=NEW_TOKENS) for prompt in prompts]
    outcome = Outcome()
    for request in requests:
        engine.submit(request)
        outcome.add(engine.step())
    run_to_end(engine, outcome)
    assert sum(event.pool_hit_tokens for event in outcome.scheduled.values()) > 0
    for request in requests:
        output = outcome.tokens[request.request_id]
        chosen = reference_logits(reference, request.tokens + output).argmax(-1).tolist()
        assert output == chosen[len(request.tokens) - 1 : -1]


def test_chunks_change_logits_by_rounding_only(model: CausalModel, prompts: list[list[int]]) -> None:
    tokens = [token for prompt in prompts[:4] for token in prompt]
    whole = Runner(model).step(tokens)
    runner = Runner(model)
    edges = [0, 1, 17, 18, 64, 100, len(tokens)]
    pieces = torch.cat([runner.step(tokens[a:b]) for a, b in itertools.pairwise(edges)])
    assert (pieces - whole).abs().max() < 1e-4


def logprobs_in(engine: Engine, prompts: list[list[int]], watched: list[int]) -> list[float]:
    """Log-probabilities along the greedy answer to `watched`, run together with `prompts`."""
    for prompt in prompts:
        engine.submit(make_request(prompt, max_tokens=4))
    engine.submit(make_request(watched, request_id="watched", max_tokens=4, logprobs=0))
    seen: list[float] = []
    while engine.has_work():
        for delta in engine.step().deltas:
            if delta.request_id == "watched":
                seen.append(delta.logprobs[0].logprob)  # type: ignore[index]
    return seen


@pytest.mark.parametrize(("batch_invariant", "tolerance"), [(False, 1e-4), (True, 0.0)])
def test_company_chunks_and_the_pool_change_nothing_but_rounding(
    smollm2_path: Path, model: CausalModel, prompts: list[list[int]], batch_invariant: bool, tolerance: float
) -> None:
    if batch_invariant:
        model = load_model(smollm2_path, batch_invariant=True)
    watched = prompts[2] + prompts[1][:20]
    alone = logprobs_in(make_engine(model, smollm2_path), [], watched)
    crowded = make_engine(model, smollm2_path, max_batch_tokens=29)
    for _ in range(2):  # cold, then with the prefix from the pool
        seen = logprobs_in(crowded, prompts[3:5], watched)
        assert max(abs(a - b) for a, b in zip(seen, alone, strict=True)) <= tolerance
    assert crowded.stats().blocks_cached > 0
