"""Causal grouped-query attention over a paged cache.

The cache of one layer is a view [slots, 2, kv_heads, rows, channels] (keys, then values), strided over the pool. A
request's tokens lie in the blocks of its table, `rows` to a block, in order. `AttentionPlan` says, once per step
for all layers, which rows of the flat batch belong to whom; `write` puts the step's keys and values into the cache
before `attend` reads it.
"""

from __future__ import annotations

import torch

from kernels.attention import invariant, paged
from kernels.attention.plan import AttentionPlan, Span

__all__ = ["AttentionPlan", "Span", "attend", "write"]


def write(keys_values: torch.Tensor, cache: torch.Tensor, plan: AttentionPlan) -> None:
    """Store [n, 2, kv_heads, channels] at the batch's places in the layer's cache (cast to its dtype)."""
    cache.permute(0, 3, 1, 2, 4)[plan.write_slots, plan.write_rows] = keys_values.to(cache.dtype)


def attend(queries: torch.Tensor, cache: torch.Tensor, plan: AttentionPlan) -> torch.Tensor:
    """`softmax(q k / sqrt(c)) v` over every cached token up to and including the row's own.

    queries float32 [n, heads, c], heads a multiple of kv_heads; the result is float32 [n, heads, c]. Query head h reads
    key/value head h // (heads / kv_heads). With `plan.invariant` all shapes are fixed tiles at absolute positions, and
    a row's result is the same to the bit however its request was cut into steps and whatever shares the step. n may
    be 0.
    """
    if plan.invariant:
        return invariant.attend(queries, cache, plan)
    return paged.attend(queries, cache, plan)
