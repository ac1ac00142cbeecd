"""The forward pass over a flat batch of tokens, keys and values in the paged pool."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kernels.attention import AttentionPlan, PagedCache, Span, attend, rotate_and_write_
from kernels.linear import LinearWeight, gated_linear_add_, linear_add_, norm_linear
from kernels.rope import rotary_angles
from workers.models.base import Batch, CacheSpec, CacheViews, ModelOutput, PagedGroup, Plane
from workers.models.llama.config import LlamaConfig

LAYOUT_VERSION = 2
"""Part of block identity: raise it when a block's bytes change their meaning."""
GROUP = "attention"
KEYS = "keys"
VALUES = "values"


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
    embeddings: torch.Tensor | None
    """None where the head's table is the embeddings' too."""
    layers: list[LlamaLayer]
    norm: torch.Tensor
    head: LinearWeight
    inverse_frequencies: torch.Tensor


class LlamaModel:
    """`workers.models.base.CausalModel`. Keys and values are float32 in the cache of a `fp32` model, else bfloat16."""

    def __init__(
        self,
        config: LlamaConfig,
        weights: LlamaWeights,
        *,
        weight_format: str,
        cache_dtype: torch.dtype,
        batch_invariant: bool,
    ) -> None:
        self.config = config
        self.weights = weights
        self.vocab_size = config.vocab_size
        self.max_context = config.max_context
        self.weight_format = weight_format
        self.cache_dtype = cache_dtype
        self.batch_invariant = batch_invariant
        self._views: CacheViews | None = None
        self._layer_caches: list[PagedCache] = []

    look_back = 0

    def resume_from(self, hit: int, prompt: int) -> int:
        return hit

    def cache_spec(self) -> CacheSpec:
        # Keys by channel, values by row: see `kernels.attention.PagedCache`.
        shape = (self.config.kv_heads, self.config.head_dim)
        planes = (
            Plane(KEYS, self.cache_dtype, shape, rows_axis=2),
            Plane(VALUES, self.cache_dtype, shape, rows_axis=1),
        )
        return CacheSpec(
            layout_version=LAYOUT_VERSION,
            block_tokens=self.config.block_tokens,
            paged=(PagedGroup(GROUP, tuple(range(self.config.layers)), 1, planes),),
        )

    @torch.inference_mode()
    def forward(self, batch: Batch, cache: CacheViews) -> ModelOutput:
        c, w = self.config, self.weights
        spans = [Span(segment.start, segment.count, segment.context, segment.slots) for segment in batch.segments]
        plan = AttentionPlan.build(spans, c.block_tokens, invariant=self.batch_invariant)
        angles = rotary_angles(batch.positions, w.inverse_frequencies)
        x = self._embed(batch.tokens)
        for layer, blocks in zip(w.layers, self._caches(cache), strict=True):
            qkv = norm_linear(x, layer.attention_norm, c.rms_eps, layer.qkv)
            qkv = qkv.view(-1, c.heads + 2 * c.kv_heads, c.head_dim)
            rotate_and_write_(qkv, angles, blocks, plan)
            attended = attend(qkv[:, : c.heads], blocks, plan)
            linear_add_(x, attended.view(x.shape[0], -1), layer.output)
            gated_linear_add_(x, norm_linear(x, layer.mlp_norm, c.rms_eps, layer.gate_up), layer.down)
        last = x if batch.logit_rows.shape[0] == x.shape[0] else x[batch.logit_rows]
        logits = norm_linear(last, w.norm, c.rms_eps, w.head)
        return ModelOutput(logits=logits, layer_rows=(x.shape[0],) * c.layers)

    def _embed(self, tokens: torch.Tensor) -> torch.Tensor:
        table = self.weights.embeddings
        return self.weights.head.rows(tokens) if table is None else table[tokens].float()

    def _caches(self, views: CacheViews) -> list[PagedCache]:
        """One per layer, made anew only where another pool comes."""
        if views is not self._views:
            layers = range(self.config.layers)
            self._layer_caches = [
                PagedCache(views.paged(GROUP, layer, KEYS), views.paged(GROUP, layer, VALUES)) for layer in layers
            ]
            self._views = views
        return self._layer_caches
