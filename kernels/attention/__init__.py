"""Causal grouped-query attention over a paged cache.

A request's tokens lie in the blocks of its table, a fixed number of rows to a block, in order; `PagedCache` is one
layer's view of all blocks. `AttentionPlan` says, once per step for all layers, which rows of the flat batch belong to
whom; `write` puts the step's keys and values into the cache before `attend` reads it.
"""

from __future__ import annotations

import torch

from kernels.attention import invariant, native, paged
from kernels.attention.cache import PagedCache
from kernels.attention.plan import AttentionPlan, Span
from kernels.rope import rotate_

__all__ = ["AttentionPlan", "PagedCache", "Span", "attend", "rotate_and_write_", "write"]


def write(keys: torch.Tensor, values: torch.Tensor, cache: PagedCache, plan: AttentionPlan) -> None:
    """Store [n, kv_heads, channels] each at the batch's places in the layer's cache (cast to its dtype)."""
    cache.put(keys, values, plan.write_slots, plan.write_rows)


def rotate_and_write_(qkv: torch.Tensor, angles: torch.Tensor, cache: PagedCache, plan: AttentionPlan) -> None:
    """Rotary positions for queries and keys, and keys and values into the cache.

    qkv float32 [n, heads + 2 kv_heads, channels], contiguous: queries, keys, values; queries are rotated in place, what
    becomes of the other rows is open. `angles` complex64 [n, channels / 2], from `kernels.rope.rotary_angles`.
    """
    if native.suits(cache):
        native.rotate_and_write_(qkv, angles, cache, plan)
        return
    kv_heads = cache.kv_heads
    rotate_(qkv[:, :-kv_heads], angles)
    write(qkv[:, -2 * kv_heads : -kv_heads], qkv[:, -kv_heads:], cache, plan)


def attend(queries: torch.Tensor, cache: PagedCache, plan: AttentionPlan) -> torch.Tensor:
    """`softmax(q k / sqrt(c)) v` over every cached token up to and including the row's own.

    queries float32 [n, heads, c], heads a multiple of kv_heads; the result is float32 [n, heads, c]. Query head h reads
    key/value head h // (heads / kv_heads). n may be 0. By the native kernels, or with `plan.invariant`, a row's result
    is the same to the bit however its request was cut into steps and whatever shares the step.
    """
    if native.suits(cache):
        return native.attend(queries, cache, plan)
    if plan.invariant:
        return invariant.attend(queries, cache, plan)
    return paged.attend(queries, cache, plan)
