"""Three ways to the same sum over experts, each the fastest for some number of rows and size of expert.

- by row: every (row, expert) pair multiplies a copy of the expert's weights: one row, or few, of small experts;
- padded: all experts at once, each with as many places as the busiest needs: small experts, evenly used;
- sorted: one expert after the other on its own rows: large experts, or many rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kernels.moe.reference import gated, gated_ffn, weighted_sum
from kernels.quantization.weights import Weight

COPIED_WEIGHTS = 2**18
"""Up to this many weights, copying them costs less than the calls it saves."""
SMALL_EXPERT = 2**17


@dataclass(frozen=True, slots=True)
class Sizes:
    """`pairs` of row and expert, weights of an expert, `experts` in all."""

    pairs: int
    expert_weights: int
    experts: int

    @classmethod
    def of(cls, experts: torch.Tensor, w1: Weight) -> Sizes:
        count, inner, channels = w1.data.shape
        return cls(experts.numel(), 3 * inner * channels, count)

    @property
    def prefer_rows(self) -> bool:
        return self.pairs * self.expert_weights <= COPIED_WEIGHTS

    @property
    def prefer_padding(self) -> bool:
        return self.expert_weights <= SMALL_EXPERT


def busiest(experts: torch.Tensor, count: int) -> int:
    return int(torch.bincount(experts.flatten(), minlength=count).max()) if experts.numel() else 0


def mix_by_row(
    x: torch.Tensor,
    experts: torch.Tensor,
    weights: torch.Tensor,
    w1: torch.Tensor,
    w3: torch.Tensor,
    w2: torch.Tensor,
    limit: float,
) -> torch.Tensor:
    rows, top_k = experts.shape
    chosen = experts.flatten()
    column = x.to(w1.dtype).repeat_interleave(top_k, dim=0)[..., None]
    inner = gated(torch.bmm(w1[chosen], column), torch.bmm(w3[chosen], column), limit)
    given = torch.bmm(w2[chosen], inner).view(rows, top_k, x.shape[1])
    return weighted_sum(given.to(weights.dtype), weights).to(x.dtype)


def mix_padded(
    x: torch.Tensor,
    experts: torch.Tensor,
    weights: torch.Tensor,
    w1: torch.Tensor,
    w3: torch.Tensor,
    w2: torch.Tensor,
    limit: float,
    room: int,
) -> torch.Tensor:
    """`room`: places per expert, at least as many as the busiest needs."""
    rows, top_k = experts.shape
    order, place = _sorted_places(experts, w1.shape[0], room)
    padded = x.new_zeros((w1.shape[0] * room, x.shape[1]), dtype=w1.dtype)
    padded[place] = x[order // top_k].to(w1.dtype)
    padded = padded.view(w1.shape[0], room, x.shape[1])
    inner = gated(torch.bmm(padded, w1.transpose(1, 2)), torch.bmm(padded, w3.transpose(1, 2)), limit)
    out = torch.bmm(inner, w2.transpose(1, 2)).flatten(0, 1)
    given = torch.empty_like(out[: rows * top_k])
    given[order] = out[place]
    return weighted_sum(given.view(rows, top_k, x.shape[1]).to(weights.dtype), weights).to(x.dtype)


def _sorted_places(experts: torch.Tensor, count: int, room: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Pairs sorted by expert, and where each of them goes among [experts * room] places."""
    flat = experts.flatten()
    chosen, order = flat.sort(stable=True)
    used = torch.bincount(flat, minlength=count)
    before = used.cumsum(0) - used
    return order, chosen * room + torch.arange(len(flat), device=flat.device) - before[chosen]


def mix_sorted(
    x: torch.Tensor,
    experts: torch.Tensor,
    weights: torch.Tensor,
    w1: torch.Tensor,
    w3: torch.Tensor,
    w2: torch.Tensor,
    limit: float,
) -> torch.Tensor:
    rows, top_k = experts.shape
    flat = experts.flatten()
    order = flat.argsort(stable=True)
    sorted_rows = x[order // top_k]
    out = torch.empty_like(sorted_rows)
    first = 0
    for expert, used in enumerate(torch.bincount(flat, minlength=w1.shape[0]).tolist()):
        if used:
            part = slice(first, first + used)
            out[part] = gated_ffn(sorted_rows[part], w1[expert], w3[expert], w2[expert], limit)
            first += used
    given = torch.empty_like(out)
    given[order] = out
    return weighted_sum(given.view(rows, top_k, x.shape[1]).to(weights.dtype), weights).to(x.dtype)
