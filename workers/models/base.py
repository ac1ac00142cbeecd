"""What the engine asks of a model: a declaration of its caches, and one forward pass over a flat batch of tokens."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import torch


@dataclass(frozen=True, slots=True)
class Plane:
    """One kind of bytes of a row: `shape` and `dtype` of what a single row of a single layer holds."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def row_bytes(self) -> int:
        return prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class PagedGroup:
    """Long-lived rows, shareable between requests: one row per `ratio` tokens in each of `layers`.

    A block covers `CacheSpec.block_tokens` tokens and so holds `block_tokens // ratio` rows per layer.
    """

    name: str
    layers: tuple[int, ...]
    ratio: int
    planes: tuple[Plane, ...]


@dataclass(frozen=True, slots=True)
class WindowGroup:
    """A ring of the last `rows` rows of each request, in each of `layers`; addressed by position modulo rows."""

    name: str
    layers: tuple[int, ...]
    rows: int
    planes: tuple[Plane, ...]


@dataclass(frozen=True, slots=True)
class StateSection:
    """Named, versioned state of a request that is neither paged nor a ring (open compressor group, look-back ids)."""

    name: str
    version: int
    planes: tuple[Plane, ...]

    @property
    def nbytes(self) -> int:
        return sum(plane.row_bytes for plane in self.planes)


@dataclass(frozen=True, slots=True)
class CacheSpec:
    """Everything a model keeps between steps. `layout_version` is part of block identity: raise it with the layout."""

    layout_version: int
    block_tokens: int
    paged: tuple[PagedGroup, ...]
    windows: tuple[WindowGroup, ...] = ()
    states: tuple[StateSection, ...] = ()

    def __post_init__(self) -> None:
        for group in self.paged:
            if self.block_tokens % group.ratio:
                raise ValueError(
                    f"paged group {group.name}: ratio {group.ratio} does not divide {self.block_tokens} tokens"
                )

    @property
    def paged_bytes_per_token(self) -> float:
        """Bytes of paged rows per token over all layers, without alignment."""
        return sum(
            len(group.layers) * sum(plane.row_bytes for plane in group.planes) / group.ratio for group in self.paged
        )
