"""Linear layers over rows, with the weight in a runtime format of its own."""

from __future__ import annotations

import torch

from kernels.linear import reference
from kernels.linear.weights import FORMATS, LinearWeight, row_invariant_tile

__all__ = ["FORMATS", "LinearWeight", "linear", "linear_add_", "row_invariant_tile"]


def linear(x: torch.Tensor, weight: LinearWeight) -> torch.Tensor:
    """`x W^T`: x float32 [n, k], weight [m, k] in any format; float32 [n, m]. n may be 0.

    Where `weight.tile` is set, rows run in tiles of that many, the last one padded: every multiplication has one shape,
    and a row's result does not depend, to the bit, on which rows it shares the call with.
    """
    if weight.tile is None:
        return reference.linear(x, weight.values)
    return reference.linear_tiled(x, weight.values, weight.tile)


def linear_add_(target: torch.Tensor, x: torch.Tensor, weight: LinearWeight) -> torch.Tensor:
    """`target += x W^T` in place, target float32 [n, m]. Returns target. Same rules as `linear`."""
    if weight.tile is None and weight.values.dtype == target.dtype:
        return target.addmm_(x, weight.values.t())
    return target.add_(linear(x, weight))
