"""Manifold hyper-connections in plain torch (V4.1 specification, section 4)."""

import torch


def widen(x: torch.Tensor) -> torch.Tensor:
    return x if x.dtype in (torch.float32, torch.float64) else x.float()


def mix(
    residual: torch.Tensor,
    fn: torch.Tensor,
    scale: torch.Tensor,
    base: torch.Tensor,
    rms_eps: float,
    hc_eps: float,
    iterations: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    n = residual.shape[1]
    flat = widen(residual).flatten(1)
    m = (flat @ fn.to(flat.dtype).T) * torch.rsqrt(flat.square().mean(-1, keepdim=True) + rms_eps)
    scale, base = scale.to(flat.dtype), base.to(flat.dtype)
    pre = torch.sigmoid(m[:, :n] * scale[0] + base[:n]) + hc_eps
    post = 2 * torch.sigmoid(m[:, n : 2 * n] * scale[1] + base[n : 2 * n])
    logits = (m[:, 2 * n :] * scale[2] + base[2 * n :]).unflatten(1, (n, n))
    matrix = torch.softmax(logits, dim=-1).add_(hc_eps)
    matrix.div_(matrix.sum(-2, keepdim=True).add_(hc_eps))
    for _ in range(iterations - 1):
        matrix.div_(matrix.sum(-1, keepdim=True).add_(hc_eps))
        matrix.div_(matrix.sum(-2, keepdim=True).add_(hc_eps))
    return pre, post, matrix


def collapse(residual: torch.Tensor, pre: torch.Tensor, norm: torch.Tensor | None, eps: float) -> torch.Tensor:
    rows = torch.einsum("tn,tnd->td", pre, residual.to(pre.dtype)).to(residual.dtype)
    if norm is None:
        return rows
    wide = widen(rows)
    statistic = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (wide * statistic * norm.to(wide.dtype)).to(rows.dtype)


def expand(residual: torch.Tensor, output: torch.Tensor, post: torch.Tensor, matrix: torch.Tensor) -> torch.Tensor:
    mixed = torch.einsum("tjk,tjd->tkd", matrix, residual.to(matrix.dtype))
    return (post[:, :, None] * output.to(post.dtype)[:, None, :] + mixed).to(residual.dtype)
