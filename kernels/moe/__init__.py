"""Mixture of experts: routing by sqrt-softplus scores, the experts' gated feed-forward (V4.1 specification, section 6).

T rows, D channels, I inner channels, E experts, k experts per row. T may be 0.
"""

import torch

from kernels.moe import reference
from kernels.quantization.weights import Weight

__all__ = ["gated_ffn", "mix_experts", "route"]


def route(
    x: torch.Tensor,
    gate: torch.Tensor,
    bias: torch.Tensor,
    *,
    top_k: int,
    scaling: float,
    temperature: float = 1.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Pick experts for x [T, D]: (experts int64 [T, k] by descending biased score, weights [T, k]).

    gate [E, D]; bias [E] or [T, E] joins in choosing only. `s = sqrt(softplus(gate x / temperature))`,
    float32; weights are the unbiased scores of the chosen over (their sum + 1e-20), times `scaling`. Ties
    go to the lowest expert.
    """
    return reference.route(x, gate, bias, top_k, scaling, temperature)


def gated_ffn(x: torch.Tensor, w1: torch.Tensor, w3: torch.Tensor, w2: torch.Tensor, *, limit: float) -> torch.Tensor:
    """`w2( silu(min(w1 x, limit)) * clip(w3 x, -limit, limit) )`. x [T, D]; w1, w3 [I, D]; w2 [D, I] -> [T,
    D].
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
) -> torch.Tensor:
    """`sum_e weights_e expert_e(x)` for x [T, D] routed to experts [T, k] with weights [T, k] -> [T, D].

    w1, w3, w2 are stacks over experts ([E, I, D], [E, I, D], [E, D, I]), float or quantised; quantised ones
    are expanded one expert at a time. An expert twice in a row counts twice. A row's sum runs over
    ascending experts.
    """
    return reference.mix_experts(x, experts, weights, w1, w3, w2, limit)
