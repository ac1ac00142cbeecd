"""From a store folder (GGUF, or safetensors under Hugging Face's names) to a model ready to run."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import torch

from kernels.linear import LinearWeight
from workers.models.gguf_index import INDEX_NAME, GGUFWeights
from workers.models.llama.config import LlamaConfig
from workers.models.llama.model import LlamaLayer, LlamaModel, LlamaWeights
from workers.models.llama.names import check_names
from workers.models.safetensors_index import read_index
from workers.models.safetensors_stream import SafetensorsStream
from workers.models.store import Progress
from workers.spec import WeightFormat

Tensor = torch.Tensor
_GGUF_NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}
_GGUF_TOP = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}


def load_llama(
    folder: Path,
    *,
    weight_format: WeightFormat = WeightFormat.FP32,
    batch_invariant: bool = False,
    progress: Progress | None = None,
) -> LlamaModel:
    """Raises ConfigError, CheckpointError or GGUFError, each naming what is wrong."""
    if (folder / INDEX_NAME).is_file():
        stored = GGUFWeights(folder, "model.gguf")

        def read_gguf(name: str) -> Tensor:
            return stored.tensor(_gguf_name(name))

        return _assemble(stored.index.config, read_gguf, True, weight_format, batch_invariant, progress)
    config = LlamaConfig.from_hf(json.loads((folder / "config.json").read_bytes()))
    index = read_index(folder)
    check_names(config, index)
    with SafetensorsStream() as stream:

        def read_safetensors(name: str) -> Tensor:
            return stream.read(index[name]).float()

        return _assemble(config, read_safetensors, False, weight_format, batch_invariant, progress)


def _gguf_name(name: str) -> str:
    if name in _GGUF_TOP:
        return _GGUF_TOP[name]
    _, _, layer, rest = name.split(".", 3)
    return f"blk.{layer}.{_GGUF_NAMES[rest.removesuffix('.weight')]}.weight"


def _assemble(
    config: LlamaConfig,
    read: Callable[[str], Tensor],
    pairs_together: bool,
    weight_format: WeightFormat,
    batch_invariant: bool,
    progress: Progress | None,
) -> LlamaModel:
    """`read` gives float32 tensors by Hugging Face name; `pairs_together`: q and k rows are permuted, as in GGUF."""

    def rotary_rows(weight: Tensor, heads: int) -> Tensor:
        if pairs_together:
            return weight
        halves = weight.view(heads, 2, config.head_dim // 2, -1)
        return halves.transpose(1, 2).reshape(weight.shape)

    def prepare(weight: Tensor) -> LinearWeight:
        return LinearWeight.prepare(weight, weight_format, batch_invariant=batch_invariant)

    layers = []
    for number in range(config.layers):
        at = f"model.layers.{number}"
        queries = rotary_rows(read(f"{at}.self_attn.q_proj.weight"), config.heads)
        keys = rotary_rows(read(f"{at}.self_attn.k_proj.weight"), config.kv_heads)
        layers.append(
            LlamaLayer(
                attention_norm=read(f"{at}.input_layernorm.weight"),
                qkv=prepare(torch.cat((queries, keys, read(f"{at}.self_attn.v_proj.weight")))),
                output=prepare(read(f"{at}.self_attn.o_proj.weight")),
                mlp_norm=read(f"{at}.post_attention_layernorm.weight"),
                gate_up=prepare(torch.cat((read(f"{at}.mlp.gate_proj.weight"), read(f"{at}.mlp.up_proj.weight")))),
                down=prepare(read(f"{at}.mlp.down_proj.weight")),
            )
        )
        if progress is not None:
            progress("loading layers", number + 1, config.layers)
    kept = torch.float32 if weight_format is WeightFormat.FP32 else torch.bfloat16
    embeddings = read("model.embed_tokens.weight")
    head = prepare(embeddings if config.tied_embeddings else read("lm_head.weight"))
    weights = LlamaWeights(
        # A tied table is kept once, in the head's format: a row of it is looked up and made float32 again.
        embeddings=None if config.tied_embeddings else embeddings.to(kept),
        layers=layers,
        norm=read("model.norm.weight"),
        head=head,
        inverse_frequencies=inverse_frequencies(config),
    )
    return LlamaModel(
        config, weights, weight_format=str(weight_format), cache_dtype=kept, batch_invariant=batch_invariant
    )


def inverse_frequencies(config: LlamaConfig) -> Tensor:
    """theta^(-2i/c) for i < c/2, stretched as the configuration says. `llama3`: wavelengths below
    original/high_freq_factor stay, those above original/low_freq_factor are divided by the factor, a ramp between.
    """
    frequencies = 1.0 / (config.rope_theta ** (torch.arange(0, config.head_dim, 2).float() / config.head_dim))
    scaling = config.rope_scaling
    if scaling is None:
        return frequencies
    slow = frequencies / scaling.factor
    if scaling.kind == "linear":
        return slow
    wavelengths = 2 * math.pi / frequencies
    ramp = (scaling.original_context / wavelengths - scaling.low_freq_factor) / (
        scaling.high_freq_factor - scaling.low_freq_factor
    )
    ramp = ramp.clamp(0.0, 1.0)
    return (1 - ramp) * slow + ramp * frequencies
