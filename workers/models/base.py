"""What the engine asks of a model: a declaration of its caches, and one forward pass over a flat batch of tokens."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Protocol

import torch


@dataclass(frozen=True, slots=True)
class Plane:
    """One kind of bytes of a row: `shape` and `dtype` of what a single row of a single layer holds."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    rows_axis: int = 0
    """Where the rows of a block lie among the axes of `shape`: 0 keeps a row's bytes together, 2 with shape
    (2, heads, channels) makes blocks (2, heads, rows, channels), which is what attention reads head by head."""
    packing: str = ""
    """Name of the format where `dtype` is only its carrier: uint8 alone does not tell what the bytes mean."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """One request's tokens in a step: rows [start, start + count) of the flat batch, after `context` cached tokens.

    `slots` is the request's block table: it covers at least `context + count` tokens.
    """

    start: int
    count: int
    context: int
    slots: list[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """All tokens of a step, flat; the requests' boundaries lie beside them, in the order of their rows.

    `tokens` and `positions` are int64 [n]; `logit_rows` int64 [m] names the rows whose logits are wanted.
    """

    tokens: torch.Tensor
    positions: torch.Tensor
    segments: list[Segment]
    logit_rows: torch.Tensor


class CacheViews(Protocol):
    """The pool's memory as a model sees it: strided views, made once (`workers.engine.layout`)."""

    def paged(self, group: str, layer: int, plane: str) -> torch.Tensor:
        """[slots, *shape with the block's rows inserted at `rows_axis`], a view of the pool."""


class CausalModel(Protocol):
    """A model that the engine can run. `forward` is called by one thread at a time."""

    vocab_size: int
    max_context: int
    weight_format: str
    batch_invariant: bool
    """Results equal to the bit whatever else is in the batch, however the prompt was cut into steps."""

    def cache_spec(self) -> CacheSpec: ...

    def forward(self, batch: Batch, cache: CacheViews) -> torch.Tensor:
        """Writes the batch's rows into the cache and returns float32 logits [m, vocab_size] of `logit_rows`."""
