"""RMS norm and rotation of float32 rows on the CPU, each one call instead of half a dozen; the models have the torch
form and ask `takes` first.

`norm(x) = x * w / sqrt(mean(x^2) + eps)`; the last `2 r` channels are pairs of adjacent ones, multiplied as complex
numbers by a row's r turns. A row's result does not depend on others.
"""

from __future__ import annotations

import torch

from kernels.row_ops import native

__all__ = ["norm_rotate", "rotate_", "takes"]


def takes(x: torch.Tensor) -> bool:
    """Whether such rows are served here."""
    return native.takes(x)


def norm_rotate(x: torch.Tensor, weight: torch.Tensor, eps: float, turns: torch.Tensor | None = None) -> torch.Tensor:
    """rms norm of x [..., c] by weight [c]; with turns complex64 [T, r], of x [T, c], rotated."""
    return native.norm_rotate(x, weight, eps, turns)


def rotate_(x: torch.Tensor, turns: torch.Tensor) -> torch.Tensor:
    """x [T, ..., c], contiguous, rotated in place by turns complex64 [T, r]; ValueError where those do not fit."""
    return native.rotate_(x, turns)
