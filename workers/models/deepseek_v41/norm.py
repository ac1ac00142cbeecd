"""`rms(x; w) = x * rsqrt(mean(x^2) + eps) * w`, computed in float32 and rounded once.

The official eps is 1e-20: it is added in float32, where it still keeps a row of zeros finite.
"""

import torch

from kernels import row_ops


def widen(x: torch.Tensor) -> torch.Tensor:
    """At least float32; float64 stays, so that a test may run the whole model in it."""
    return x if x.dtype in (torch.float32, torch.float64) else x.float()


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x [..., c], weight [c] -> [..., c] in x's dtype."""
    if row_ops.takes(x):
        return row_ops.norm_rotate(x, weight, eps)
    wide = widen(x)
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps) * weight.to(wide.dtype)).to(x.dtype)
