"""Attention over a few chosen rows per query with a sink, and the indexer that chooses them.

V4.1 specification, sections 5.1 (attention) and 5.3 (indexer). T queries, H heads, d channels. T may be 0.
Pools may be packed (`kernels.quantization.Rows`) and block-major, so that a cache is read where it lies.
"""

from collections.abc import Sequence

import torch

from kernels.quantization import Rows
from kernels.sparse_attention import reference

__all__ = ["candidate_blocks", "index_scores", "restrict_to_blocks", "select_positions", "sparse_attention"]


def sparse_attention(
    queries: torch.Tensor,
    sources: Sequence[tuple[Rows, torch.Tensor]],
    sink: torch.Tensor,
    *,
    scale: float,
) -> torch.Tensor:
    """Softmax attention of queries [T, H, d] over the rows that each query names -> [T, H, d]; key = value.

    Each source is a pool of rows and int64 [T, K] numbers into it, -1 for none; nothing is deduplicated.
    The sink [H], unscaled, joins the denominator only, so a query without any row gives 0. Computed in
    float32 (float64 for float64).
    """
    return reference.sparse_attention(queries, sources, sink, scale)


def index_scores(
    queries: torch.Tensor, weights: torch.Tensor, keys: torch.Tensor, visible: torch.Tensor
) -> torch.Tensor:
    """`score[t, j] = sum_h w[t, h] relu(<q[t, h], k_j>)` -> [..., T, J], -inf where j >= visible[t]. Never -0.

    queries [..., T, h, d], weights [..., T, h], keys [..., J, d], visible int64 [..., T]. Leading axes are
    sequences.
    """
    return reference.index_scores(queries, weights, keys, visible)


def select_positions(scores: torch.Tensor, count: int) -> torch.Tensor:
    """The `count` best positions of scores [..., J], ascending, then -1: int64 [..., min(count, J)].

    -inf is never selected. Among equal scores the lowest position wins.
    """
    return reference.select_positions(scores, count)


def candidate_blocks(scores: torch.Tensor, visible: torch.Tensor, *, block_size: int, count: int) -> torch.Tensor:
    """Which blocks of `block_size` positions are candidates: bool [..., ceil(J / block_size)].

    A block scores as its best position. The block of the newest visible position always counts among the
    `count`; blocks without a visible position never do. Among equal blocks the lowest wins.
    """
    return reference.candidate_blocks(scores, visible, block_size, count)


def restrict_to_blocks(scores: torch.Tensor, blocks: torch.Tensor, *, block_size: int) -> torch.Tensor:
    """scores [..., J] with -inf outside the candidate blocks of the same query (bool [..., ceil(J /
    block_size)]).
    """
    return reference.restrict_to_blocks(scores, blocks, block_size)
