"""Reading `config.json`: both forms, and a specific error for what the family does not have."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.workers.models.deepseek_v41.factories import TINY, TINY_QUANTIZED
from workers.models.deepseek_v41.config import DeepseekV41Config
from workers.models.deepseek_v41.errors import ConfigError
from workers.models.deepseek_v41.nano import NANO
from workers.models.deepseek_v41.primes import engram_multipliers, engram_primes, is_prime
from workers.models.deepseek_v41.rope import inverse_frequencies


def raw(**changes: Any) -> dict[str, Any]:
    value = TINY.to_dict()
    value["text_config"] |= changes
    return value


@pytest.mark.parametrize("config", [TINY, TINY_QUANTIZED, NANO])
def test_nested_and_flat_forms(config: DeepseekV41Config) -> None:
    nested = json.loads(json.dumps(config.to_dict()))
    assert DeepseekV41Config.from_dict(nested) == config
    flat = nested.pop("text_config") | nested
    assert DeepseekV41Config.from_dict(flat) == config


def test_other_spellings() -> None:
    value = raw(vision_thing=1)
    text = value["text_config"]
    text["engram_pad_id"] = text.pop("engram_pad_token_id")
    text["compress_ratios"] = list(TINY.compress_ratios)
    config = DeepseekV41Config.from_dict(value)
    assert config == TINY
    assert config.unknown_keys == ("vision_thing",)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"compress_ratios": [0, 0, 2, 2, 2, 4, 1, 1]}, r"compress_ratios\[5\] = 4: only 0, 1 and 2"),
        ({"compress_ratios": [0, 0, 2]}, "compress_ratios has 3 entries for 8 layers"),
        ({"compress_ratios": [0, 0, 2, 2, 2, 1, 1, 1, 1, 0]}, "draft stages read their window alone"),
        ({"compress_ratios": [0, 0, 2, 2, 2, 1, 2, 1]}, r"compress_ratios\[6\] = 2, but its KV source, layer 5"),
        ({"compress_ratios": [0, 2, 2, 2, 2, 1, 1, 1]}, "layer 1 reads latents, but the first KV source is layer 2"),
        ({"compress_ratios": [0, 0, 0, 2, 2, 1, 1, 1]}, r"layer 2 is a KV source, but compress_ratios\[2\] is 0"),
        ({"kv_source_layer_ids": [2, 4, 9]}, "there are 8 layers"),
        ({"kv_source_layer_ids": [2, 3, 4, 5]}, "layer 3 is a KV source but not an index source"),
        ({"candidate_source_layer_id": 6}, "candidate_source_layer_id = 6 is not an index source"),
        ({"candidate_source_layer_id": 2}, "reads other latents than the candidates"),
        ({"index_topk": 17}, "index_topk is more than"),
        ({"sliding_window": 7}, "sliding_window = 7: must be even"),
        ({"sliding_window": "8"}, "sliding_window = '8': a whole number is needed"),
        ({"engram_num_embeddings": [384, 553]}, "layer 3 has 553 rows, its primes sum to 552"),
        ({"num_hash_layers": 3}, "num_hash_layers = 3"),
        ({"scoring_func": "softmax"}, "scoring_func = 'softmax'"),
        ({"rope_scaling": {"type": "linear", "factor": 2}}, "only yarn"),
        ({"o_groups": 3}, "o_groups = 3 does not divide"),
        ({"image_token_id": 192}, "image_token_id = 192 is not below vocab_size"),
        ({"gate_temp": 0}, "gate_temp = 0"),
        ({"num_experts_per_tok": 5}, "num_experts_per_tok is more than"),
    ],
)
def test_refusals(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        DeepseekV41Config.from_dict(raw(**changes))


def test_missing_keys_are_named() -> None:
    value = raw()
    del value["text_config"]["head_dim"], value["text_config"]["index_topk"]
    with pytest.raises(ConfigError, match="lacks head_dim, index_topk"):
        DeepseekV41Config.from_dict(value)


def test_unknown_quantisation() -> None:
    with pytest.raises(ConfigError, match=r"weight_block_size = \[128, 128\]"):
        DeepseekV41Config.from_dict(raw() | {"quantization_config": {"weight_block_size": [128, 128]}})


@pytest.mark.parametrize("text", ["[]", "{", '{"text_config": 3}'])
def test_not_a_config(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ConfigError):
        DeepseekV41Config.from_folder(tmp_path)


def test_owners() -> None:
    assert [TINY.kv_owner(layer) for layer in range(8)] == [None, None, 2, 2, 4, 5, 5, 5]
    assert [TINY.index_owner(layer) for layer in range(8)] == [None, None, 2, 2, 4, 5, 5, 7]
    assert TINY.cut == 5


def test_official_primes() -> None:
    drawn = engram_primes(2, 3, 8, 16_000_000)
    assert [sum(map(sum, per_layer)) for per_layer in drawn] == [384_006_168, 384_016_682]
    flat = [prime for per_layer in drawn for row in per_layer for prime in row]
    assert len(set(flat)) == 48


def test_primes_below_a_hundred() -> None:
    wanted = [n for n in range(100) if n > 1 and all(n % d for d in range(2, n))]
    assert [n for n in range(100) if is_prime(n)] == wanted


def test_multipliers_are_odd_and_cannot_overflow() -> None:
    for multiplier in engram_multipliers(14, 4, 99_092):
        assert multiplier % 2 == 1
        assert multiplier * 99_091 < 2**63


def test_yarn_only_slows_low_frequencies() -> None:
    plain = inverse_frequencies(64, 160000.0, None)
    scaled = inverse_frequencies(64, 160000.0, TINY.rope_scaling)
    assert plain[0] == scaled[0] == 1.0
    assert float(scaled[-1] / plain[-1]) == pytest.approx(1 / 4)
    assert (scaled <= plain).all()
