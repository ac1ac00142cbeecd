"""Linear layers in plain torch."""

import torch
import torch.nn.functional as F


def linear(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    if weight.dtype == x.dtype:
        return F.linear(x, weight)
    return F.linear(x.to(weight.dtype), weight).to(x.dtype)


def linear_tiled(x: torch.Tensor, weight: torch.Tensor, tile: int) -> torch.Tensor:
    rows = x.shape[0]
    padded = -(-rows // tile) * tile
    if padded != rows:
        x = torch.cat((x, x.new_zeros(padded - rows, x.shape[1])))
    out = x.new_empty(padded, weight.shape[0])
    for start in range(0, padded, tile):
        out[start : start + tile] = linear(x[start : start + tile], weight)
    return out[:rows]


def gated(gate_up: torch.Tensor) -> torch.Tensor:
    """`silu(gate) * up` for [n, 2 k] holding gate, then up."""
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate).mul_(up)
