"""v41-nano: every mechanism of V4.1 in about eight million parameters, and random checkpoints in the official layout.

Twelve layers, `cut` = 5 with six layers behind it, window = block = 32, 32 routed experts, three draft stages. Random
weights write noise; they exercise the serving system, its caches and its exactness, at the speed of a CPU. `WIDE` has
the same layers at about four times the size: less of its time goes into calls, more into arithmetic.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import save_file

from kernels.quantization import WeightFormat, encode_weight
from workers.models.deepseek_v41.config import CONFIG_NAME, DeepseekV41Config, YarnScaling
from workers.models.deepseek_v41.layout import Quantized, TensorSpec, expected_tensors
from workers.models.deepseek_v41.nano_tokenizer import IMAGE, NOISE, build_tokenizer
from workers.models.deepseek_v41.token_map import TOKENIZER_NAME
from workers.models.safetensors_index import INDEX_NAME

NANO = DeepseekV41Config(
    vocab_size=2048,
    hidden_size=128,
    num_hidden_layers=12,
    num_attention_heads=4,
    head_dim=64,
    qk_rope_head_dim=16,
    q_lora_rank=64,
    o_groups=2,
    o_lora_rank=64,
    sliding_window=32,
    compress_ratios=(0, 0, 2, 2, 2, 1, 1, 1, 1, 1, 1, 1),
    kv_source_layer_ids=(2, 4, 5),
    index_source_layer_ids=(2, 4, 5, 8, 10),
    candidate_source_layer_id=5,
    candidate_topk_blocks=16,
    candidate_block_size=4,
    index_n_heads=4,
    index_head_dim=32,
    index_topk=32,
    rope_theta=10000.0,
    compress_rope_theta=160000.0,
    rope_scaling=YarnScaling(factor=4.0, beta_fast=32.0, beta_slow=1.0, original_max_position_embeddings=4096),
    max_position_embeddings=16384,
    rms_norm_eps=1e-20,
    hc_mult=4,
    hc_sinkhorn_iters=20,
    hc_eps=1e-6,
    n_routed_experts=32,
    num_experts_per_tok=4,
    moe_intermediate_size=32,
    routed_scaling_factor=1.5,
    swiglu_limit=10.0,
    engram_layer_ids=(1, 3),
    engram_num_embeddings=(6568, 7464),
    engram_vocab_size=500,
    engram_max_ngram_size=4,
    engram_n_heads=4,
    engram_head_dim=32,
    engram_pad_token_id=2,
    engram_compressed_vocab_size=1581,
    image_token_id=2032,
    num_nextn_predict_layers=3,
    dspark_block_size=5,
    dspark_noise_token_id=1983,
    dspark_markov_rank=32,
    dspark_target_layer_ids=(9, 10, 11),
    dspark_n_routed_experts=8,
    dspark_num_experts_per_tok=2,
    quantized=True,
)

WIDE = replace(
    NANO,
    hidden_size=256,
    num_attention_heads=8,
    q_lora_rank=128,
    o_groups=4,
    n_routed_experts=8,
    num_experts_per_tok=2,
    moe_intermediate_size=256,
    engram_head_dim=64,
    dspark_markov_rank=64,
)

_QUANTIZED_FORMATS = {
    Quantized.BLOCKS: WeightFormat.FP8_BLOCK,
    Quantized.ROWS: WeightFormat.FP8_ROW,
    Quantized.EXPERT: WeightFormat.MXFP4,
}


def random_values(spec: TensorSpec, generator: torch.Generator) -> torch.Tensor:
    """float32 values that keep activations near one and every mechanism awake."""
    noise = torch.randn(spec.shape, generator=generator)
    last = spec.name.removesuffix(".weight").rsplit(".", 1)[-1]
    if last.endswith("norm") or last in ("q_weight", "k_weight"):
        return 1 + 0.1 * noise
    if last.endswith("_scale"):
        return 1 + 0.1 * noise
    if last.endswith(("_base", "bias", "bias_vl", "attn_sink")):
        return 0.1 * noise
    if last == "embed":
        return noise
    return noise / spec.shape[-1] ** 0.5


def random_tensors(config: DeepseekV41Config, seed: int) -> Iterator[tuple[str, torch.Tensor]]:
    """Every tensor of a random checkpoint, quantised as released if the configuration says so."""
    generator = torch.Generator().manual_seed(seed)
    for spec in expected_tensors(config):
        values = random_values(spec, generator)
        if config.quantized and spec.quantized in _QUANTIZED_FORMATS:
            payload, scales = encode_weight(values, _QUANTIZED_FORMATS[spec.quantized])
            yield spec.name, payload
            yield spec.scale_name, scales
        elif config.quantized and not spec.name.endswith(("bias", "bias_vl", "attn_sink", "_fn", "_base", "_scale")):
            yield spec.name, values.bfloat16()
        else:
            yield spec.name, values


def write_checkpoint(
    folder: Path, config: DeepseekV41Config, tensors: Iterable[tuple[str, torch.Tensor]], shards: int = 1
) -> None:
    """Write `config.json`, the shards and their index. The folder is made; what is in it is overwritten."""
    folder.mkdir(parents=True, exist_ok=True)
    parts: list[dict[str, torch.Tensor]] = [{} for _ in range(shards)]
    everything = list(tensors)
    for i, (name, tensor) in enumerate(everything):
        parts[i * shards // len(everything)][name] = tensor.contiguous()
    weight_map: dict[str, str] = {}
    for number, part in enumerate(parts, 1):
        file = f"model-{number:05d}-of-{shards:05d}.safetensors"
        save_file(part, folder / file, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(part, file)
    total = sum(tensor.nbytes for _, tensor in everything)
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / INDEX_NAME).write_text(json.dumps(index, indent=1) + "\n", encoding="utf-8")
    (folder / CONFIG_NAME).write_text(json.dumps(config.to_dict(), indent=1) + "\n", encoding="utf-8")


def make_nano(folder: Path, seed: int = 0, config: DeepseekV41Config = NANO) -> None:
    """Write a random v41-nano with its tokenizer, or one of another size: the same bytes for the same seed."""
    tokenizer = build_tokenizer(config.vocab_size)
    assert tokenizer.token_to_id(IMAGE) == config.image_token_id
    assert tokenizer.token_to_id(NOISE) == config.dspark_noise_token_id
    write_checkpoint(folder, config, random_tensors(config, seed), shards=2)
    tokenizer.save(str(folder / TOKENIZER_NAME))
    special = {"bos_token": 0, "eos_token": 1, "pad_token": 2}
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": config.max_position_embeddings,
        **{key: tokenizer.id_to_token(token) for key, token in special.items()},
    }
    (folder / "tokenizer_config.json").write_text(
        json.dumps(settings, ensure_ascii=False, indent=1) + "\n", encoding="utf-8"
    )
