"""Attention whose results do not depend, to the bit, on chunking or company.

Queries are taken in tiles of 16 that begin at multiples of 16 of the *absolute* position, keys in tiles of 128
likewise; missing rows are padding. So a row always sits at the same place of a product of the same shape, over the
same tiles in the same order; masked keys add exact zeros. What it costs: a decode step multiplies 16 rows to keep
one.
"""

from __future__ import annotations

import torch

from kernels.attention.cache import PagedCache
from kernels.attention.plan import AttentionPlan, Span

QUERY_TILE = 16
KEY_TILE = 128


def attend(queries: torch.Tensor, cache: PagedCache, plan: AttentionPlan) -> torch.Tensor:
    out = torch.empty(queries.shape)
    for span in plan.spans:
        _attend_span(queries, cache, span, plan.block_rows, out)
    return out


def _attend_span(queries: torch.Tensor, cache: PagedCache, span: Span, block_rows: int, out: torch.Tensor) -> None:
    heads, channels = queries.shape[1:]
    kv_heads = cache.kv_heads
    group = heads // kv_heads
    keys, values = _gather(cache, span, block_rows)
    for tile in range(span.context // QUERY_TILE, (span.length - 1) // QUERY_TILE + 1):
        first = max(tile * QUERY_TILE, span.context)
        last = min((tile + 1) * QUERY_TILE, span.length)
        inside = slice(first - tile * QUERY_TILE, last - tile * QUERY_TILE)
        rows = slice(span.start + first - span.context, span.start + last - span.context)
        padded = queries.new_zeros(QUERY_TILE, kv_heads, group, channels)
        padded[inside] = queries[rows].view(-1, kv_heads, group, channels)
        flat = padded.permute(1, 2, 0, 3).reshape(kv_heads, group * QUERY_TILE, channels) * channels**-0.5
        result = _attend_tile(flat, keys, values, tile, group).view(kv_heads, group, QUERY_TILE, channels)
        out[rows] = result.permute(2, 0, 1, 3)[inside].reshape(-1, heads, channels)


def _gather(cache: PagedCache, span: Span, block_rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values [kv_heads, length rounded up to KEY_TILE, c]; what lies past the length is zero."""
    kv_heads, channels = cache.kv_heads, cache.channels
    padded = -(-span.length // KEY_TILE) * KEY_TILE
    used = torch.tensor(span.slots[: -(-span.length // block_rows)])
    joined = torch.zeros(2, kv_heads, padded, channels)
    joined[0, :, : span.length], joined[1, :, : span.length] = cache.gather(used, span.length)
    return joined[0], joined[1]


def _attend_tile(
    queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, tile: int, group: int
) -> torch.Tensor:
    """queries [kv_heads, group * QUERY_TILE, c] at positions tile * QUERY_TILE ...; one pass with a running maximum."""
    kv_heads, rows, _ = queries.shape
    positions = torch.arange(tile * QUERY_TILE, (tile + 1) * QUERY_TILE).repeat(group)
    peak = queries.new_full((kv_heads, rows, 1), -torch.inf)
    total = queries.new_zeros(kv_heads, rows, 1)
    result = torch.zeros_like(queries)
    # A padding row past the request's end sees only zeros; a real row never needs keys past its own tile.
    last_key = min((tile + 1) * QUERY_TILE, keys.shape[1])
    for start in range(0, last_key, KEY_TILE):
        k = keys[:, start : start + KEY_TILE].contiguous()
        v = values[:, start : start + KEY_TILE].contiguous()
        hidden = torch.arange(start, start + KEY_TILE) > positions[:, None]
        scores = torch.bmm(queries, k.transpose(1, 2)).masked_fill_(hidden, -torch.inf)
        new_peak = torch.maximum(peak, scores.amax(-1, keepdim=True))
        weights = (scores - new_peak).exp_()
        scale = (peak - new_peak).exp_()
        total = total * scale + weights.sum(-1, keepdim=True)
        result = result * scale + torch.bmm(weights, v)
        peak = new_peak
    return result / total
