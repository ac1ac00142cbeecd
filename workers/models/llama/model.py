"""The forward pass over a flat batch of tokens, keys and values in the paged pool."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from kernels.attention import AttentionPlan, Span, attend, write
from kernels.linear import LinearWeight, linear, linear_add_
from kernels.norm import rms_norm
from kernels.rope import rotary_angles, rotate_
from workers.models.base import Batch, CacheSpec, CacheViews, ModelOutput, PagedGroup, Plane
from workers.models.llama.config import LlamaConfig

LAYOUT_VERSION = 1
"""Part of block identity: raise it when a block's bytes change their meaning."""
GROUP = "attention"
PLANE = "keys_values"


@dataclass(frozen=True, slots=True)
class LlamaLayer:
    """`qkv` [(heads + 2 kv_heads) * c, hidden] with pairs of rotary channels side by side; `gate_up` stacks both."""

    attention_norm: torch.Tensor
    qkv: LinearWeight
    output: LinearWeight
    mlp_norm: torch.Tensor
    gate_up: LinearWeight
    down: LinearWeight


@dataclass(frozen=True, slots=True)
class LlamaWeights:
    embeddings: torch.Tensor
    layers: list[LlamaLayer]
    norm: torch.Tensor
    head: LinearWeight
    inverse_frequencies: torch.Tensor


class LlamaModel:
    """`workers.models.base.CausalModel`. Keys and values are cached in the weights' format: float32, or bfloat16."""

    def __init__(
        self, config: LlamaConfig, weights: LlamaWeights, *, weight_format: str, cache_dtype: torch.dtype
    ) -> None:
        self.config = config
        self.weights = weights
        self.vocab_size = config.vocab_size
        self.max_context = config.max_context
        self.weight_format = weight_format
        self.cache_dtype = cache_dtype
        self.batch_invariant = weights.head.tile is not None

    look_back = 0

    def resume_from(self, hit: int, prompt: int) -> int:
        return hit

    def cache_spec(self) -> CacheSpec:
        plane = Plane(PLANE, self.cache_dtype, (2, self.config.kv_heads, self.config.head_dim), rows_axis=2)
        return CacheSpec(
            layout_version=LAYOUT_VERSION,
            block_tokens=self.config.block_tokens,
            paged=(PagedGroup(GROUP, tuple(range(self.config.layers)), 1, (plane,)),),
        )

    @torch.inference_mode()
    def forward(self, batch: Batch, cache: CacheViews) -> ModelOutput:
        c, w = self.config, self.weights
        spans = [Span(segment.start, segment.count, segment.context, segment.slots) for segment in batch.segments]
        plan = AttentionPlan.build(spans, c.block_tokens, invariant=self.batch_invariant)
        angles = rotary_angles(batch.positions, w.inverse_frequencies)
        x = w.embeddings[batch.tokens].float()
        for number, layer in enumerate(w.layers):
            rows = rms_norm(x, layer.attention_norm, c.rms_eps)
            qkv = linear(rows, layer.qkv).view(-1, c.heads + 2 * c.kv_heads, c.head_dim)
            rotate_(qkv[:, : c.heads + c.kv_heads], angles)
            blocks = cache.paged(GROUP, number, PLANE)
            write(qkv[:, c.heads :].unflatten(1, (2, c.kv_heads)), blocks, plan)
            attended = attend(qkv[:, : c.heads], blocks, plan)
            linear_add_(x, attended.reshape(x.shape[0], -1), layer.output)
            rows = rms_norm(x, layer.mlp_norm, c.rms_eps)
            gate, up = linear(rows, layer.gate_up).chunk(2, dim=-1)
            linear_add_(x, F.silu(gate).mul_(up), layer.down)
        last = x if batch.logit_rows.shape[0] == x.shape[0] else x[batch.logit_rows]
        logits = linear(rms_norm(last, w.norm, c.rms_eps), w.head)
        return ModelOutput(logits=logits, layer_rows=(x.shape[0],) * c.layers)
