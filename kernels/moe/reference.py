"""Routing and routed experts in plain torch (V4.1 specification, section 6)."""

import torch
import torch.nn.functional as F

from kernels.quantization.weights import Weight


def widen(x: torch.Tensor) -> torch.Tensor:
    return x if x.dtype in (torch.float32, torch.float64) else x.float()


def route(
    logits: torch.Tensor, bias: torch.Tensor, top_k: int, scaling: float, temperature: float
) -> tuple[torch.Tensor, torch.Tensor]:
    scores = F.softplus(logits if temperature == 1 else logits / temperature).sqrt_()
    # A stable sort is what makes ties go to the lowest expert; topk promises no order.
    order = (scores + bias).sort(dim=-1, descending=True, stable=True).indices
    experts = order[:, :top_k]
    chosen = scores.gather(1, experts)
    return experts, chosen.div_(chosen.sum(-1, keepdim=True).add_(1e-20)).mul_(scaling)


def gated(gate: torch.Tensor, up: torch.Tensor, limit: float) -> torch.Tensor:
    wide = F.silu(widen(gate).clamp(max=limit)).mul_(widen(up).clamp(-limit, limit))
    return wide.to(gate.dtype)


def gated_ffn(x: torch.Tensor, w1: torch.Tensor, w3: torch.Tensor, w2: torch.Tensor, limit: float) -> torch.Tensor:
    rows = x.to(w1.dtype)
    return F.linear(gated(F.linear(rows, w1), F.linear(rows, w3), limit), w2).to(x.dtype)


def mix_experts(
    x: torch.Tensor,
    experts: torch.Tensor,
    weights: torch.Tensor,
    w1: Weight,
    w3: Weight,
    w2: Weight,
    limit: float,
) -> torch.Tensor:
    """One expert at a time: the definition, and the form for weights that are expanded in use."""
    given = weights.new_empty((*experts.shape, x.shape[1]))
    for expert in experts.unique().tolist():
        row, slot = (experts == expert).nonzero(as_tuple=True)
        gate, up, down = (w[expert].dense(x.dtype) for w in (w1, w3, w2))
        given[row, slot] = gated_ffn(x[row], gate, up, down, limit).to(weights.dtype)
    return weighted_sum(given, weights).to(x.dtype)


def weighted_sum(given: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """sum_i weights[t, i] given[t, i] for given [T, k, D]."""
    return torch.bmm(weights[:, None], given).squeeze(1)
