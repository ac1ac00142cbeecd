"""Where the keys of sparse attention come from."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Source:
    """A pool of float rows [N, d] and int64 [T, K] numbers into it; without `index`, the rows [T, K, d] themselves."""

    rows: torch.Tensor
    index: torch.Tensor | None = None

    def keys(self, first: int, last: int) -> torch.Tensor:
        """[last - first, K, d] of the queries [first, last)."""
        return self.rows[first:last] if self.index is None else self.rows[self.index[first:last]]

    def of(self, queries: torch.Tensor) -> Source:
        """The source of some queries."""
        return Source(self.rows[queries]) if self.index is None else Source(self.rows, self.index[queries])

    @property
    def width(self) -> int:
        """K"""
        return self.rows.shape[1] if self.index is None else self.index.shape[1]
