"""What selection takes and gives."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class KeyTiles:
    """Index keys of runs, unpacked for scoring (layout: `native.cpp`); `first` int64 [runs]: each run's first tile."""

    codes: torch.Tensor
    scales: torch.Tensor
    first: torch.Tensor


@dataclass(frozen=True, slots=True)
class Blocks:
    """Candidate blocks: `count` of `size` positions each. `allowed` int32 [T, count], ascending, then -1: a row's
    candidates; None where they are to be found.
    """

    size: int
    count: int
    allowed: torch.Tensor | None = None
