"""Mixture of experts: routing by sqrt-softplus scores, the experts' gated feed-forward (V4.1 specification, section 6).

T rows, D channels, I inner channels, E experts, k experts per row. T may be 0.
"""

import torch

from kernels.moe import forms, native, reference
from kernels.moe.native import PackedExperts
from kernels.quantization.formats import WeightFormat
from kernels.quantization.weights import Weight

__all__ = ["PackedExperts", "gated", "gated_ffn", "mix_experts", "mix_packed", "pack", "route"]


def route(
    logits: torch.Tensor, bias: torch.Tensor, *, top_k: int, scaling: float, temperature: float = 1.0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Pick experts from logits [T, E], float32: (experts int64 [T, k] by descending biased score, weights [T, k]).

    bias [E] or [T, E] joins in choosing only. `s = sqrt(softplus(logits / temperature))`; weights are the unbiased
    scores of the chosen over (their sum + 1e-20), times `scaling`. Ties go to the lowest expert.
    """
    return reference.route(logits, bias, top_k, scaling, temperature)


def gated(gate: torch.Tensor, up: torch.Tensor, *, limit: float) -> torch.Tensor:
    """`silu(min(gate, limit)) * clip(up, -limit, limit)` in at least float32, rounded to the inputs' dtype."""
    return reference.gated(gate, up, limit)


def gated_ffn(x: torch.Tensor, w1: torch.Tensor, w3: torch.Tensor, w2: torch.Tensor, *, limit: float) -> torch.Tensor:
    """`w2( silu(min(w1 x, limit)) * clip(w3 x, -limit, limit) )`. x [T, D]; w1, w3 [I, D]; w2 [D, I] -> [T, D].

    Products are in the weights' dtype, the result in x's.
    """
    return reference.gated_ffn(x, w1, w3, w2, limit)


def mix_experts(
    x: torch.Tensor,
    experts: torch.Tensor,
    weights: torch.Tensor,
    w1: Weight,
    w3: Weight,
    w2: Weight,
    *,
    limit: float,
    by_row: bool = False,
) -> torch.Tensor:
    """`sum_e weights_e expert_e(x)` for x [T, D] routed to experts [T, k] with weights [T, k] -> [T, D].

    w1, w3, w2 are stacks over experts ([E, I, D], [E, I, D], [E, D, I]), float or quantised; quantised ones are
    expanded one expert at a time. An expert twice in a row counts twice. A row's sum runs over its experts in the order
    given. `by_row` multiplies each row with its own experts alone, in shapes that do not depend on who chose what.
    Otherwise the form follows from the sizes (`kernels.moe.forms`); all agree to rounding.
    """
    sizes = forms.Sizes.of(experts, w1)
    if w1.format is not WeightFormat.FLOAT:
        return reference.mix_experts(x, experts, weights, w1, w3, w2, limit)
    if by_row or sizes.prefer_rows:
        return forms.mix_by_row(x, experts, weights, w1.data, w3.data, w2.data, limit)
    if sizes.prefer_padding and (room := forms.busiest(experts, sizes.experts)) * sizes.experts <= 4 * sizes.pairs:
        return forms.mix_padded(x, experts, weights, w1.data, w3.data, w2.data, limit, room)
    return forms.mix_sorted(x, experts, weights, w1.data, w3.data, w2.data, limit)


def pack(w1: torch.Tensor, w3: torch.Tensor, w2: torch.Tensor, weight_format: str) -> PackedExperts | None:
    """Experts for `mix_packed`, from float32 stacks as in `mix_experts`; None where there are no native kernels.

    `weight_format` is one of `kernels.linear.FORMATS`.
    """
    return native.pack(w1, w3, w2, weight_format)


def mix_packed(
    x: torch.Tensor, experts: torch.Tensor, weights: torch.Tensor, packed: PackedExperts, *, limit: float
) -> torch.Tensor:
    """`mix_experts` for packed experts: x float32. No row's result depends, to the bit, on its company."""
    return native.mix_experts(x, experts, weights, packed, limit)
