"""Paged attention for throughput: single rows as one ragged batch of blocks, longer runs by a fused kernel each."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from kernels.attention.cache import PagedCache
from kernels.attention.plan import AttentionPlan, ManyPlan, SinglePlan


def attend(queries: torch.Tensor, cache: PagedCache, plan: AttentionPlan) -> torch.Tensor:
    if plan.single is not None and not plan.many:
        return _attend_single(queries, cache, plan.single)
    out = torch.empty(queries.shape)
    if plan.single is not None:
        out[plan.single.rows] = _attend_single(queries[plan.single.rows], cache, plan.single)
    for many in plan.many:
        rows = slice(many.span.start, many.span.start + many.span.count)
        out[rows] = _attend_many(queries[rows], cache, many)
    return out


def _attend_single(queries: torch.Tensor, cache: PagedCache, plan: SinglePlan) -> torch.Tensor:
    """queries [R, heads, c]. Reads exactly the live blocks; no padding to the longest request.

    Scores of a block are one small product per (block, key/value head); softmax runs over each request's blocks with a
    running maximum per request, and the blocks' weighted values are added up in block order.
    """
    requests, heads, channels = queries.shape
    kv_heads, block_rows = cache.kv_heads, cache.rows
    group = heads // kv_heads
    count = plan.blocks.shape[0]
    # Past a request's end lies what an earlier owner of the block left there, NaN perhaps: neither a bias of -inf nor a
    # weight of zero takes that out of a product.
    keys = cache.keys.index_select(0, plan.blocks).float().view(count * kv_heads, channels, block_rows)
    values = cache.values.index_select(0, plan.blocks).float()
    values[plan.last] = values[plan.last].masked_fill_(plan.unwritten[:, None, :, None], 0.0)
    values = values.view(count * kv_heads, block_rows, channels)
    scaled = queries.reshape(requests, kv_heads, group * channels) * channels**-0.5
    per_block = scaled.index_select(0, plan.owners).view(count * kv_heads, group, channels)
    scores = torch.bmm(per_block, keys).view(count, heads, block_rows)
    scores[plan.last] = scores[plan.last].masked_fill_(plan.unwritten[:, None], -torch.inf)

    owners = plan.owners[:, None].expand(count, heads)
    peaks = scores.new_full((requests, heads), -torch.inf).scatter_reduce_(0, owners, scores.amax(-1), "amax")
    weights = scores.sub_(peaks.index_select(0, plan.owners)[:, :, None]).exp_()
    totals = scores.new_zeros(requests, heads).index_add_(0, plan.owners, weights.sum(-1))
    parts = torch.bmm(weights.view(count * kv_heads, group, block_rows), values)
    out = scores.new_zeros(requests, heads * channels).index_add_(0, plan.owners, parts.view(count, heads * channels))
    return out.view(requests, heads, channels).div_(totals[:, :, None])


def _attend_many(queries: torch.Tensor, cache: PagedCache, plan: ManyPlan) -> torch.Tensor:
    """queries [count, heads, c] of one request."""
    keys, values = cache.gather(plan.blocks, plan.span.length)
    out = F.scaled_dot_product_attention(
        queries.transpose(0, 1)[None],
        keys[None],
        values[None],
        attn_mask=plan.mask,
        is_causal=plan.mask is None,
        enable_gqa=True,
    )
    return out[0].transpose(0, 1)
