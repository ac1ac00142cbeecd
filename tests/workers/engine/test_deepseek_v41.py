"""V4.1 under the real scheduler: whatever was cached, cut, mixed, split or put aside, the answer is that of a cold run.

Compared are the log-probabilities of the whole vocabulary at each output position. A cold run is one of another tenant.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable
from pathlib import Path

import pytest
import torch

from tests.workers.engine.factories import make_engine, make_request, transfer
from tests.workers.models.deepseek_v41.factories import TINY, TINY_QUANTIZED, random_ids, write_tiny
from workers.engine.api import EngineRequest
from workers.engine.engine import Engine
from workers.manifest import ModelManifest, write_manifest
from workers.models.base import CausalModel
from workers.models.deepseek_v41.config import DeepseekV41Config
from workers.models.store import load_model
from workers.protocol import RequestId, TokenDelta
from workers.spec import PrefillTrim

W = TINY.sliding_window
CLOSE = 2e-5
OUTPUTS = 4
_cold = itertools.count()


def stored(folder: Path, config: DeepseekV41Config = TINY) -> Path:
    write_tiny(folder, config)
    manifest = ModelManifest(
        name="tiny",
        family="deepseek_v41",
        display_name="tiny",
        source="test",
        licence="",
        weights_fingerprint="w",
        tokenizer_fingerprint="t",
        parameters=1,
        max_context=TINY.max_position_embeddings,
        block_tokens=W,
        vocab_size=TINY.vocab_size,
        bos_token_id=0,
        eos_token_ids=(1,),
        chat_format="deepseek_v41",
    )
    write_manifest(folder, manifest)
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return stored(tmp_path_factory.mktemp("v41"))


@pytest.fixture(scope="module")
def model(folder: Path) -> CausalModel:
    return load_model(folder)


@pytest.fixture(scope="module", params=[TINY, TINY_QUANTIZED], ids=["float", "quantised"])
def invariant(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> CausalModel:
    """Quantised: its caches hold four and eight bits, where the least rounding would show as another code."""
    return load_model(stored(tmp_path_factory.mktemp("v41"), request.param), batch_invariant=True)


def engine_of(model: CausalModel, **settings: object) -> Engine:
    return make_engine(model, **({"pool_blocks": 512, "max_batch_tokens": 512} | settings))


def ids(length: int, seed: int) -> list[int]:
    return random_ids(length, seed).tolist()


def asking(tokens: Iterable[int], **changes: object) -> EngineRequest:
    values: dict[str, object] = {"max_tokens": OUTPUTS, "logprobs": TINY.vocab_size}
    return make_request(tokens, **(values | changes))


class Answers:
    """Tokens and distributions of requests, by id."""

    def __init__(self) -> None:
        self.tokens: dict[RequestId, list[int]] = {}
        self.rows: dict[RequestId, list[torch.Tensor]] = {}

    def add(self, delta: TokenDelta) -> None:
        for token, logprobs in zip(delta.tokens, delta.logprobs or (), strict=False):
            row = torch.empty(TINY.vocab_size, dtype=torch.float64)
            row[[i for i, _ in logprobs.top]] = torch.tensor([value for _, value in logprobs.top], dtype=torch.float64)
            self.tokens.setdefault(delta.request_id, []).append(token)
            self.rows.setdefault(delta.request_id, []).append(row)

    def of(self, request: EngineRequest) -> tuple[list[int], torch.Tensor]:
        return self.tokens[request.request_id], torch.stack(self.rows[request.request_id])


def run(engine: Engine, *requests: EngineRequest) -> tuple[Answers, dict[str, tuple[int, int]]]:
    """All of them at once; answers, and (hit, recomputed) tokens by id."""
    answers, hits = Answers(), {}
    for request in requests:
        engine.submit(request)
    while engine.has_work():
        output = engine.step()
        engine.check_conservation()
        hits |= {e.request_id: (e.pool_hit_tokens, e.recomputed_tokens) for e in output.scheduled}
        assert not output.failed
        for delta in output.deltas:
            answers.add(delta)
    return answers, hits


def cold(engine: Engine, *prompts: list[int], outputs: int = OUTPUTS) -> list[tuple[list[int], torch.Tensor]]:
    requests = [asking(tokens, max_tokens=outputs, salt=f"cold{next(_cold)}".encode()) for tokens in prompts]
    answers, hits = run(engine, *requests)
    assert set(hits.values()) == {(0, 0)}
    return [answers.of(request) for request in requests]


def assert_same(got: tuple[list[int], torch.Tensor], wanted: tuple[list[int], torch.Tensor], close: float) -> None:
    assert got[0] == wanted[0]
    torch.testing.assert_close(got[1], wanted[1], atol=close, rtol=0)


def assert_cold(engine: Engine, answers: Answers, requests: list[EngineRequest], close: float) -> None:
    """Each answer is that of its prompt among strangers, nothing cached."""
    for request, wanted in zip(requests, cold(engine, *(r.tokens for r in requests)), strict=True):
        assert_same(answers.of(request), wanted, close)


def hitting(known: list[int], blocks: int, new: int, seed: int) -> EngineRequest:
    return asking([*known[: blocks * W], *ids(new, seed)])


def test_a_hit_at_every_boundary_gives_what_a_cold_run_gives(model: CausalModel, seeded: int) -> None:
    numbers = random.Random(seeded)
    engine = engine_of(model)
    known = ids(20 * W, 1)
    run(engine, asking(known, max_tokens=1))
    new = {blocks: numbers.choice([1, 2, W - 1, W, W + 1, numbers.randint(1, 60)]) for blocks in range(1, 21)}
    requests = [hitting(known, *case, seed=case[0]) for case in [*new.items(), (3, 300)]]
    answers, hits = run(engine, *requests)
    for request, blocks in zip(requests, [*new, 3], strict=True):
        hit, recomputed = hits[request.request_id]
        assert hit == blocks * W
        assert recomputed == hit - model.resume_from(hit, len(request.tokens))
    assert_cold(engine, answers, requests, CLOSE)


def test_hits_in_small_chunks_one_by_one(model: CausalModel, seeded: int) -> None:
    numbers = random.Random(seeded)
    engine = engine_of(model, max_batch_tokens=numbers.choice([17, 24, 40]))
    known = ids(20 * W, 1)
    run(engine, asking(known, max_tokens=1))
    requests = [
        hitting(known, blocks, numbers.randint(1, 40), seed=blocks) for blocks in numbers.sample(range(1, 21), 3)
    ]
    for request in requests:
        answers, _ = run(engine, request)
        assert_cold(engine_of(model), answers, [request], CLOSE)


def test_hits_of_answers_and_in_company(model: CausalModel, seeded: int) -> None:
    """The second turns of conversations whose first answers were decoded together; other requests come in between."""
    numbers = random.Random(seeded)
    engine = engine_of(model, max_batch_tokens=48)
    first = [asking(ids(numbers.randint(1, 60), n), max_tokens=numbers.randint(18, 26)) for n in range(4)]
    answers, _ = run(engine, *first)
    turns = [
        asking([*r.tokens, *answers.tokens[r.request_id], *ids(numbers.randint(1, 40), 50 + n)])
        for n, r in enumerate(first)
    ]
    strangers = [asking(ids(numbers.randint(1, 60), 90 + n)) for n in range(2)]
    answers, hits = run(engine, *turns, *strangers)
    for request, before in zip(turns, first, strict=True):
        whole = len(before.tokens) + before.sampling.max_tokens - 1  # the last token's rows were never computed
        assert hits[request.request_id][0] == whole // W * W
    assert_cold(engine, answers, [*turns, *strangers], CLOSE)


def test_batch_invariant_results_are_equal_to_the_bit(invariant: CausalModel, seeded: int) -> None:
    numbers = random.Random(seeded)
    engine = engine_of(invariant, max_batch_tokens=40)
    known = ids(10 * W, 2)
    run(engine, asking(known, max_tokens=1))
    requests = [
        hitting(known, blocks, new, seed=30 + blocks)
        for blocks, new in ((1, 3), (4, 1), (7, numbers.randint(1, 60)), (9, W))
    ]
    answers, hits = run(engine, *requests)
    assert [hits[r.request_id][0] for r in requests] == [W, 4 * W, 7 * W, 9 * W]
    alone = engine_of(invariant)
    for request in requests:
        assert_cold(alone, answers, [request], 0.0)
    prefill, decode = engine_of(invariant, max_batch_tokens=32), engine_of(invariant)
    split = make_request(known, max_tokens=OUTPUTS)
    assert transfer(prefill, decode, split).tokens[split.request_id] == cold(alone, known)[0][0]


@pytest.mark.parametrize("prompt", [1, W, 3 * W + 1, 99])
def test_prefill_then_decode_elsewhere_is_role_both(model: CausalModel, prompt: int) -> None:
    """Twice: with an empty cache, and as the next turn, of which both sides hold a part."""
    prefill, decode, both = engine_of(model, max_batch_tokens=64), engine_of(model), engine_of(model)
    tokens = ids(prompt, prompt)
    for _ in range(2):
        request = make_request(tokens, max_tokens=12)
        outcome = transfer(prefill, decode, request)
        got = outcome.tokens[request.request_id]
        assert (
            got == run(both, asking(tokens, max_tokens=12, request_id=request.request_id))[0].tokens[request.request_id]
        )
        tokens = [*tokens, *got, *ids(3, prompt + 1)]
    for engine in (prefill, decode):
        engine.check_conservation()
        assert engine.stats().blocks_used == 0


def test_requests_that_were_put_aside_come_back_as_they_were(model: CausalModel) -> None:
    requests = [asking(ids(20, n), max_tokens=24, arrived=float(n)) for n in range(4)]
    engine = engine_of(model, pool_blocks=16, output_reserve_tokens=1)
    answers, _ = run(engine, *requests)
    assert engine.stats().preemptions > 0
    for request, wanted in zip(
        requests, cold(engine_of(model), *(r.tokens for r in requests), outputs=24), strict=True
    ):
        assert_same(answers.of(request), wanted, CLOSE)


def test_the_tail_is_trimmed_by_default_and_mask_agrees(folder: Path, model: CausalModel) -> None:
    prompt = ids(100, 5)
    engine = engine_of(model, max_batch_tokens=32)
    (compact,) = cold(engine, prompt)
    saved = engine.stats().rows_saved
    # Layer `cut` writes paged rows and its window for all rows; its attention and experts see the tail only.
    assert saved == (0,) * TINY.cut + (100 - W,) * (TINY.num_hidden_layers - TINY.cut)
    mask = engine_of(load_model(folder, prefill_trim=PrefillTrim.MASK), max_batch_tokens=512)
    assert_same(cold(mask, prompt)[0], compact, CLOSE)
    whole = engine_of(load_model(folder, prefill_trim=PrefillTrim.OFF))
    assert not torch.allclose(cold(whole, prompt)[0][1][0], compact[1][0], atol=CLOSE, rtol=0)
    for engine in (mask, whole):
        assert set(engine.stats().rows_saved) == {0}


def test_without_a_trimmed_tail_a_hit_runs_again_further_back(folder: Path) -> None:
    engine = engine_of(load_model(folder, prefill_trim=PrefillTrim.OFF))
    known = ids(16 * W, 7)
    run(engine, asking(known, max_tokens=1))
    request = hitting(known, 16, 5, seed=8)
    answers, hits = run(engine, request)
    hit, recomputed = hits[request.request_id]
    assert (hit, recomputed) == (16 * W, TINY.num_hidden_layers * (W - 1) + 1 - 5)
    assert_cold(engine, answers, [request], CLOSE)
