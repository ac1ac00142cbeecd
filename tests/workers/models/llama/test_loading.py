from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.workers.engine.factories import some_tokens
from tests.workers.models.llama.factories import VOCABULARY, logits, make_folder
from workers.models.llama.loading import load_llama
from workers.models.safetensors_index import CheckpointError
from workers.spec import WeightFormat

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 1e4,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({}, id="plain"),
        pytest.param({"tie_word_embeddings": True}, id="tied"),
        pytest.param({"num_key_value_heads": 6}, id="every-head-its-own"),
        pytest.param({"num_key_value_heads": 1}, id="one-for-all"),
        pytest.param({"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}, id="theta"),
        pytest.param({"rope_parameters": LLAMA3}, id="llama3"),
        pytest.param({"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}}, id="linear"),
        pytest.param({"shard_size": "60KB"}, id="shards"),
    ],
)
def test_logits_equal_transformers(tmp_path: Path, changes: dict[str, Any]) -> None:
    reference = make_folder(tmp_path, **changes)
    tokens = some_tokens(200, vocab=VOCABULARY)
    with torch.no_grad():
        expected = reference(torch.tensor([tokens])).logits[0]
    torch.testing.assert_close(logits(load_llama(tmp_path), tokens), expected, atol=1e-4, rtol=1e-4)


def test_bf16_is_near_and_says_what_it_is(tmp_path: Path) -> None:
    make_folder(tmp_path)
    tokens = some_tokens(50, vocab=VOCABULARY)
    exact, model = load_llama(tmp_path), load_llama(tmp_path, weight_format=WeightFormat.BF16)
    assert (model.weight_format, model.cache_dtype) == ("bf16", torch.bfloat16)
    left, right = torch.log_softmax(logits(exact, tokens), -1), torch.log_softmax(logits(model, tokens), -1)
    divergence = (left.exp() * (left - right)).sum(-1)
    assert divergence.mean() < 0.01


def test_progress_counts_layers(tmp_path: Path) -> None:
    make_folder(tmp_path)
    seen: list[tuple[str, int, int]] = []
    load_llama(tmp_path, progress=lambda *step: seen.append(step))
    assert [step[1:] for step in seen] == [(1, 3), (2, 3), (3, 3)]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda weights: weights.pop("model.norm.weight"), "model.norm.weight is missing"),
        (lambda weights: weights.update(extra=torch.zeros(2)), "extra is unexpected"),
        (
            lambda weights: weights.update({"model.norm.weight": torch.zeros(3)}),
            r"model.norm.weight has shape \(3,\), expected \(96,\)",
        ),
        (
            lambda weights: weights.update({"model.norm.weight": torch.zeros(96, dtype=torch.int8)}),
            "model.norm.weight has dtype I8",
        ),
    ],
)
def test_a_wrong_checkpoint_is_refused_by_tensor(tmp_path: Path, damage: Any, message: str) -> None:
    make_folder(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    damage(weights)
    save_file(weights, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=message):
        load_llama(tmp_path)
