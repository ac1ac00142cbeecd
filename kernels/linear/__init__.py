"""Linear layers over rows, with the weight in a runtime format of its own, and what commonly stands before them."""

from __future__ import annotations

import torch

from kernels.linear import native, reference
from kernels.linear.weights import FORMATS, LinearWeight, quantize_rows, row_invariant_tile
from kernels.norm import rms_norm

__all__ = [
    "FORMATS",
    "LinearWeight",
    "gated_linear_add_",
    "linear",
    "linear_add_",
    "norm_linear",
    "quantize_rows",
    "row_invariant_tile",
]


def linear(x: torch.Tensor, weight: LinearWeight) -> torch.Tensor:
    """`x W^T`: x float32 [n, k], weight [m, k] in any format; float32 [n, m]. n may be 0.

    No format lets a row's result depend on which rows it shares the call with, beyond rounding. With native kernels, or
    where `weight.tile` is set (then rows run in tiles of that many, the last one padded), not even that: the bits are
    the same.
    """
    if weight.packed is not None:
        return native.linear(x, weight.packed)
    if weight.format == "w8a8":
        assert weight.scales is not None
        rows, scales = quantize_rows(x, 127)
        return _eager(rows, weight).mul_(scales[:, None]).mul_(weight.scales)
    return _eager(x, weight)


def _eager(x: torch.Tensor, weight: LinearWeight) -> torch.Tensor:
    if weight.tile is None:
        return reference.linear(x, weight.values)
    return reference.linear_tiled(x, weight.values, weight.tile)


def linear_add_(target: torch.Tensor, x: torch.Tensor, weight: LinearWeight) -> torch.Tensor:
    """`target += x W^T` in place, target float32 [n, m]. Returns target. Same rules as `linear`."""
    if weight.packed is not None:
        return native.linear(x, weight.packed, target=target)
    if weight.tile is None and weight.format in ("fp32", "w8"):
        return target.addmm_(x, weight.values.t())
    return target.add_(linear(x, weight))


def norm_linear(x: torch.Tensor, norm: torch.Tensor, eps: float, weight: LinearWeight) -> torch.Tensor:
    """`rms_norm(x, norm, eps) W^T`; same rules as `linear`."""
    if weight.packed is not None:
        return native.linear(x, weight.packed, native.RMS_NORM, norm, eps)
    return linear(rms_norm(x, norm, eps), weight)


def gated_linear_add_(target: torch.Tensor, gate_up: torch.Tensor, weight: LinearWeight) -> torch.Tensor:
    """`target += (silu(gate) * up) W^T` in place for gate_up float32 [n, 2 k], gate first; same rules as `linear`."""
    if weight.packed is not None:
        return native.linear(gate_up, weight.packed, native.SILU_MUL, target=target)
    return linear_add_(target, reference.gated(gate_up), weight)
