"""Routing and routed experts in plain torch (V4.1 specification, section 6)."""

import torch
import torch.nn.functional as F

from kernels.quantization.weights import Weight


def widen(x: torch.Tensor) -> torch.Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))


def route(
    x: torch.Tensor,
    gate: torch.Tensor,
    bias: torch.Tensor,
    top_k: int,
    scaling: float,
    temperature: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    wide = widen(x)
    scores = F.softplus(wide @ gate.to(wide.dtype).T / temperature).sqrt()
    # A stable sort is what makes ties go to the lowest expert; topk promises no order.
    order = (scores + bias).sort(dim=-1, descending=True, stable=True).indices
    experts = order[:, :top_k]
    chosen = scores.gather(1, experts)
    return experts, chosen / (chosen.sum(-1, keepdim=True) + 1e-20) * scaling


def gated_ffn(x: torch.Tensor, w1: torch.Tensor, w3: torch.Tensor, w2: torch.Tensor, limit: float) -> torch.Tensor:
    gate = F.silu(widen(F.linear(x, w1)).clamp(max=limit))
    up = widen(F.linear(x, w3)).clamp(-limit, limit)
    return F.linear((gate * up).to(x.dtype), w2)


def mix_experts(
    x: torch.Tensor,
    experts: torch.Tensor,
    weights: torch.Tensor,
    w1: Weight,
    w3: Weight,
    w2: Weight,
    limit: float,
) -> torch.Tensor:
    out = torch.zeros_like(x, dtype=weights.dtype)
    for expert in experts.unique().tolist():
        row, slot = (experts == expert).nonzero(as_tuple=True)
        gate, up, down = (w[expert].dense(x.dtype) for w in (w1, w3, w2))
        y = gated_ffn(x[row], gate, up, down, limit)
        out.index_add_(0, row, y.to(out.dtype) * weights[row, slot, None])
    return out.to(x.dtype)
