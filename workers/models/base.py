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
class StoredWindows:
    """Rows of window group `group` that make a resume cheap when they were kept: with those of the `window - 1`
    positions before s, a prompt may run from any s up to its hit that leaves its last `window` tokens to run, and
    gives what a cold run gives. The ring holds at least three windows, so that at the end of a unit the last two whole
    blocks can be copied out of it.
    """

    group: str
    window: int


@dataclass(frozen=True, slots=True)
class CacheSpec:
    """Everything a model keeps between steps. `layout_version` is part of block identity: raise it with the layout."""

    layout_version: int
    block_tokens: int
    paged: tuple[PagedGroup, ...]
    windows: tuple[WindowGroup, ...] = ()
    states: tuple[StateSection, ...] = ()
    stored_windows: StoredWindows | None = None

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
    """One request's tokens in a step: rows [start, start + count) of the flat batch, at positions `context`...

    `slots` is the request's block table: it covers at least `context + count` tokens, and `paged_from` where that is
    more.
    """

    start: int
    count: int
    context: int
    slots: list[int]
    seat: int = 0
    """The request's row in window rings and state sections; no two requests of a batch share one."""
    paged_from: int = 0
    """Paged rows of tokens below this position are exact already: a prefix hit whose end runs again for the sake of
    its windows reads them and never rewrites them."""
    rings_from: int = 0
    """The first position whose ring rows and states are this request's own: nothing below it is seen in a window."""
    prompt: int = 0
    """Tokens of the prompt, however it is cut into chunks: where its tail begins follows from it. Positions from here
    on are outputs."""
    before: tuple[int, ...] = ()
    """The token ids just before `context`, oldest first: `look_back` of them, fewer where the text begins."""


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

    def window(self, group: str, layer: int, plane: str) -> torch.Tensor:
        """[seats, rows, *shape]: the ring of every seat, by position modulo rows."""

    def state(self, section: str, plane: str) -> torch.Tensor:
        """[seats, *shape]: the section of every seat."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOutput:
    """`logits` float32 [m, vocab_size] of the batch's `logit_rows`; `layer_rows[l]` rows went through layer l, fewer
    than the batch has where the tail of a prompt is all that a layer needs.
    """

    logits: torch.Tensor
    layer_rows: tuple[int, ...]
    expert_counts: torch.Tensor | None = None
    """int64 [layers, experts]: rows that each logical expert got; None without experts."""


class CausalModel(Protocol):
    """A model that the engine can run. `forward` is called by one thread at a time."""

    vocab_size: int
    max_context: int
    weight_format: str
    batch_invariant: bool
    """Results equal to the bit whatever else is in the batch, however the prompt was cut into steps."""

    def cache_spec(self) -> CacheSpec: ...

    look_back: int
    """How many token ids before a segment the model wants to know (`Segment.before`)."""

    def resume_from(self, hit: int, prompt: int) -> int:
        """Where a prompt of `prompt` tokens begins to run after a hit of `hit` of them (a multiple of the block), so
        that it gives what a cold run gives: `hit` itself, or earlier where windows have to be made again.
        """

    def forward(self, batch: Batch, cache: CacheViews) -> ModelOutput:
        """Writes the batch's rows into the cache. Rows of one request come in one segment."""
