"""Rotary positions on pairs of neighbouring channels (2i, 2i + 1)."""

from __future__ import annotations

import torch

from kernels.rope import reference

__all__ = ["rotary_angles", "rotate_"]


def rotary_angles(positions: torch.Tensor, inverse_frequencies: torch.Tensor) -> torch.Tensor:
    """`exp(i * position * f)`: positions int64 [n], frequencies float32 [c/2]; complex64 [n, c/2].

    Angles are products in float32, as the checkpoints were trained with them.
    """
    return reference.rotary_angles(positions, inverse_frequencies)


def rotate_(x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    """Rotate x [n, heads, c] float32 in place by `angles` [n, c/2]; the last axis is contiguous. Returns x.

    Weights stored for halves (channel i pairs with i + c/2) are brought into this order by permuting the rows of the
    query and key projections, which leaves every dot product as it is.
    """
    return reference.rotate_(x, angles)
