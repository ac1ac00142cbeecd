"""The best positions without sorting everything: float32 scores and positions packed into one integer each.

A float's bits, the lower 31 flipped where it is negative, order as integers like the floats do. With the position's
complement below them every value is different, so that any `topk` gives one answer, ties to the lowest position.
"""

from __future__ import annotations

import torch

_LOW = 0xFFFFFFFF
_MINUS_INFINITY = -0x7F800001
"""The ordered bits of -inf."""


def _packed(scores: torch.Tensor) -> torch.Tensor:
    bits = scores.contiguous().view(torch.int32)
    ordered = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    position = torch.arange(scores.shape[-1], device=scores.device)
    return (ordered.long() << 32) | (_LOW - position)


def select_positions(scores: torch.Tensor, count: int) -> torch.Tensor:
    length = scores.shape[-1]
    best = _packed(scores).topk(min(count, length), dim=-1, sorted=False).values
    position = _LOW - (best & _LOW)
    ascending = torch.where(best >> 32 > _MINUS_INFINITY, position, length).sort(dim=-1).values
    return ascending.masked_fill_(ascending == length, -1)


def best_blocks(best: torch.Tensor, count: int) -> torch.Tensor:
    """Which of the scores [..., J] are among the `count` best and above -inf: bool [..., J]."""
    chosen = _packed(best).topk(min(count, best.shape[-1]), dim=-1, sorted=False).values
    kept = torch.zeros_like(best, dtype=torch.bool)
    return kept.scatter(-1, _LOW - (chosen & _LOW), chosen >> 32 > _MINUS_INFINITY)
