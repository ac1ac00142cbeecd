from __future__ import annotations

import pytest

from workers.models.llama.config import ConfigError, LlamaConfig, RopeScaling

BASE: dict[str, object] = {
    "model_type": "llama",
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-6,
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


def test_defaults_of_old_and_new_files() -> None:
    config = LlamaConfig.from_hf(BASE)
    assert (config.head_dim, config.rope_theta, config.rope_scaling, config.tied_embeddings) == (16, 1e4, None, False)
    assert LlamaConfig.from_hf(BASE | {"rope_theta": 5e5}).rope_theta == 5e5
    newer = LlamaConfig.from_hf(BASE | {"rope_parameters": {"rope_type": "default", "rope_theta": 3e4}})
    assert (newer.rope_theta, newer.rope_scaling) == (3e4, None)


def test_rotary_scaling_that_we_do() -> None:
    assert LlamaConfig.from_hf(BASE | {"rope_scaling": {"type": "linear", "factor": 2}}).rope_scaling == RopeScaling(
        "linear", 2.0
    )
    assert LlamaConfig.from_hf(BASE | {"rope_scaling": LLAMA3}).rope_scaling == RopeScaling("llama3", 8.0, 1.0, 4.0, 64)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "qwen2"}, "model_type 'qwen2' is not supported"),
        ({"attention_bias": True}, "attention_bias is not supported"),
        ({"mlp_bias": True}, "mlp_bias is not supported"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu' is not supported"),
        ({"pretraining_tp": 2}, "pretraining_tp"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantization_config: gptq"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 2}}, "rope type 'yarn' is not supported"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 2}}, "rope type 'llama3' lacks low_freq_factor"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"num_key_value_heads": 3}, "no multiple of 3 key/value heads"),
        ({"head_dim": 7}, "head_dim 7 is odd"),
        ({"hidden_size": 66}, "no multiple of 4 heads"),
        ({"num_hidden_layers": 0}, "layers is 0"),
    ],
)
def test_what_we_do_not_do_is_refused_by_name(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        LlamaConfig.from_hf(BASE | changes)


@pytest.mark.parametrize("field", ["vocab_size", "hidden_size", "rms_norm_eps", "max_position_embeddings"])
def test_a_missing_field_is_named(field: str) -> None:
    with pytest.raises(ConfigError, match=field):
        LlamaConfig.from_hf({name: value for name, value in BASE.items() if name != field})
