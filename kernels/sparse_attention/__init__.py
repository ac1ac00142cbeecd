"""Attention over a few chosen rows per query with a sink, and the indexer that chooses them.

V4.1 specification, sections 5.1 (attention) and 5.3 (indexer). T queries, H heads, d channels. T may be 0.
"""

from collections.abc import Sequence

import torch

from kernels.sparse_attention import native, reference, selection
from kernels.sparse_attention.sources import Source

__all__ = ["Source", "candidate_blocks", "index_scores", "restrict_to_blocks", "select_positions", "sparse_attention"]


def sparse_attention(
    queries: torch.Tensor,
    sources: Sequence[Source],
    bias: torch.Tensor,
    sink: torch.Tensor,
    *,
    scale: float,
) -> torch.Tensor:
    """Softmax attention of queries [T, H, d] over the rows that each query names -> [T, H, d]; key = value.

    bias [T, K], 0 or -inf, over the keys of all sources one after the other: -inf hides one, which must be finite all
    the same. Nothing is deduplicated. The sink [H], unscaled, joins the denominator only, so a query that sees no row
    gives 0. Computed in float32 (float64 for float64).
    """
    form = native if native.takes(queries, sources) else reference
    return form.sparse_attention(queries, sources, bias, sink, scale)


def index_scores(
    queries: torch.Tensor,
    weights: torch.Tensor,
    keys: torch.Tensor,
    visible: torch.Tensor,
    *,
    key_tile: int | None = None,
) -> torch.Tensor:
    """`score[t, j] = sum_h w[t, h] relu(<q[t, h], k_j>)` -> [..., T, J], -inf where j >= visible[t]. Never -0.

    queries [..., T, h, d], weights [..., T, h], keys [..., J, d], visible int64 [..., T]. Leading axes are sequences.
    `key_tile` multiplies so many keys at a time, the last ones padded: scores then do not depend, to the bit, on J.
    """
    return reference.index_scores(queries, weights, keys, visible, key_tile)


def select_positions(scores: torch.Tensor, count: int) -> torch.Tensor:
    """The `count` best positions of scores [..., J], ascending, then -1: int64 [..., min(count, J)].

    -inf is never selected. Among equal scores the lowest position wins.
    """
    return (selection if scores.dtype == torch.float32 else reference).select_positions(scores, count)


def candidate_blocks(scores: torch.Tensor, visible: torch.Tensor, *, block_size: int, count: int) -> torch.Tensor:
    """Which blocks of `block_size` positions are candidates: bool [..., ceil(J / block_size)].

    A block scores as its best position. The block of the newest visible position always counts among the
    `count`; blocks without a visible position never do. Among equal blocks the lowest wins.
    """
    best = reference.block_scores(scores, visible, block_size)
    return (selection if best.dtype == torch.float32 else reference).best_blocks(best, count)


def restrict_to_blocks(scores: torch.Tensor, blocks: torch.Tensor, *, block_size: int) -> torch.Tensor:
    """scores [..., J] with -inf outside the candidate blocks of the same query (bool [..., ceil(J /
    block_size)]).
    """
    return reference.restrict_to_blocks(scores, blocks, block_size)
