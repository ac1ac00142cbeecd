"""The independent reference's outputs, to its tolerances (V4.1 specification, section 14)."""

import pytest
import torch

from kernels.quantization import RowFormat, round_rows
from tests.workers.models.deepseek_v41.conftest import Golden
from tests.workers.models.deepseek_v41.factories import token_windows
from workers.models.deepseek_v41.cache import SequenceCache
from workers.models.deepseek_v41.model import Trim
from workers.models.deepseek_v41.prefill import prefill

LENGTHS = (1, 2, 15, 16, 17, 63, 131, 300)


def greedy(golden: Golden, cache: SequenceCache, first: int, count: int) -> list[int]:
    tokens = [first]
    while len(tokens) < count:
        logits = golden.model.forward(torch.tensor(tokens[-1:]), cache).logits
        tokens.append(int(logits[-1].argmax()))
    return tokens


@pytest.mark.parametrize("length", LENGTHS)
def test_forward(golden: Golden, length: int) -> None:
    result = golden.model.forward(golden.tensors[f"forward.{length}.ids"], golden.model.new_cache(golden.formats))
    assert golden.worst(result.logits, f"forward.{length}.logits") <= golden.tolerance


def test_experts_and_engram_rows(golden: Golden) -> None:
    ids = golden.tensors["forward.131.ids"]
    result = golden.model.forward(ids, golden.model.new_cache(golden.formats))
    assert torch.equal(result.expert_counts, golden.tensors["forward.131.expert_counts"])
    assert torch.equal(golden.model.hashes(token_windows(ids, 4)), golden.tensors["engram.131.rows"])


def test_greedy(golden: Golden) -> None:
    cache = golden.model.new_cache(golden.formats)
    logits = golden.model.forward(golden.tensors["greedy.prompt"], cache).logits
    wanted = golden.tensors["greedy.tokens"].tolist()
    assert greedy(golden, cache, int(logits[-1].argmax()), len(wanted)) == wanted


def test_dspark_and_verify(golden: Golden) -> None:
    assert golden.model.drafter is not None
    cache = golden.model.new_cache(golden.formats)
    golden.model.forward(golden.tensors["greedy.prompt"], cache)
    anchor = golden.tensors["dspark.anchor"]
    draft = golden.model.draft(int(anchor), cache)
    assert torch.equal(draft.tokens, golden.tensors["dspark.tokens"])
    torch.testing.assert_close(draft.confidence, golden.tensors["dspark.confidence"], atol=1e-4, rtol=0)
    verify = golden.model.forward(torch.cat((anchor[None], draft.tokens)), cache)
    assert golden.worst(verify.logits, "verify.logits") <= golden.tolerance


@pytest.mark.parametrize("trim", [Trim.MASK, Trim.COMPACT])
@pytest.mark.parametrize("chunk", [None, 50])
def test_trimmed_tail(golden_fp32: Golden, trim: Trim, chunk: int | None) -> None:
    golden, model = golden_fp32, golden_fp32.model
    cache = model.new_cache(golden.formats)
    result = prefill(model, golden.tensors["forward.131.ids"], cache, trim, chunk)
    assert golden.worst(result.logits[-1], "tail.logits") <= golden.tolerance
    for layer, store in cache.latents.items():
        wanted, keys = golden.tensors[f"tail.latents.{layer}"], golden.tensors[f"tail.index_keys.{layer}"]
        torch.testing.assert_close(store.view(len(wanted)).data, wanted, atol=golden.tolerance, rtol=0)
        index_keys = cache.index_keys[layer].view(len(keys)).data
        torch.testing.assert_close(index_keys, keys, atol=golden.tolerance, rtol=0)
    anchor = int(result.logits[-1].argmax())
    assert model.drafter is not None
    draft = model.draft(anchor, cache)
    assert torch.equal(draft.tokens, golden.tensors["dspark_tail.tokens"])
    torch.testing.assert_close(draft.confidence, golden.tensors["dspark_tail.confidence"], atol=1e-4, rtol=0)
    wanted_tokens = golden.tensors["tail.greedy"].tolist()
    assert greedy(golden, cache, anchor, len(wanted_tokens)) == wanted_tokens


@pytest.mark.parametrize(
    ("key", "hit", "replayed"), [("resume.32", 32, 16), ("resume.64", 64, 16), ("resume.64.replay32", 64, 32)]
)
def test_window_only_replay(golden_fp32: Golden, key: str, hit: int, replayed: int) -> None:
    golden, model = golden_fp32, golden_fp32.model
    ids = golden.tensors["forward.131.ids"]
    cache = model.new_cache(golden.formats)
    model.forward(ids[:hit], cache)
    cache.replay_from(hit - replayed)
    logits = model.forward(ids[hit - replayed :], cache).logits[replayed:]
    assert golden.worst(logits, f"{key}.logits") <= golden.tolerance


@pytest.mark.parametrize(
    ("key", "row_format"),
    [
        ("codec.window", RowFormat.E4M3_POW2_32),
        ("codec.latent", RowFormat.E2M1_E4M3_16),
        ("codec.index", RowFormat.E2M1_POW2_32),
    ],
)
def test_codec(golden: Golden, key: str, row_format: RowFormat) -> None:
    assert torch.equal(round_rows(golden.tensors["codec.in"], row_format), golden.tensors[key])


def test_parameters(golden: Golden) -> None:
    from workers.models.inspection import inspect

    found = inspect(golden.folder)
    assert found.parameters == golden.about["parameters"]
    assert found.problems == []
