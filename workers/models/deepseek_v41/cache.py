"""A cache for one sequence: a pool of its own with one seat, and what it knows of its contents (section 9).

The engine keeps the same rows in its block pool, and the same facts in its sequences.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kernels.quantization import Places, Rows
from workers.models.base import PagedGroup, Plane, Segment
from workers.models.deepseek_v41.cache_spec import build_cache_spec, ring_rows
from workers.models.deepseek_v41.config import DeepseekV41Config
from workers.models.deepseek_v41.errors import CacheError
from workers.models.deepseek_v41.formats import CacheFormats
from workers.models.deepseek_v41.layer_caches import LayerCaches

FIRST_BLOCKS = 2


class _Pool:
    """`workers.models.base.CacheViews` over plain tensors: one seat, and blocks that are added as the text grows."""

    def __init__(self, config: DeepseekV41Config, formats: CacheFormats, dtype: torch.dtype) -> None:
        self.spec = build_cache_spec(config, formats, dtype)
        self.blocks = FIRST_BLOCKS
        self._paged = {
            (group.name, layer, plane.name): self._blocks(group, plane, FIRST_BLOCKS)
            for group in self.spec.paged
            for layer in group.layers
            for plane in group.planes
        }
        self._windows = {
            (group.name, layer, plane.name): torch.zeros((1, group.rows, *plane.shape), dtype=plane.dtype)
            for group in self.spec.windows
            for layer in group.layers
            for plane in group.planes
        }
        self._states = {
            (section.name, plane.name): torch.zeros((1, *plane.shape), dtype=plane.dtype)
            for section in self.spec.states
            for plane in section.planes
        }

    def _blocks(self, group: PagedGroup, plane: Plane, count: int) -> torch.Tensor:
        return torch.zeros((count, self.spec.block_tokens // group.ratio, *plane.shape), dtype=plane.dtype)

    def grow(self, blocks: int) -> None:
        """At least so many blocks, twice as many where there are too few: paged views change."""
        if blocks > self.blocks:
            self.blocks = max(blocks, 2 * self.blocks)
            for key, old in self._paged.items():
                self._paged[key] = torch.cat((old, old.new_zeros((self.blocks - len(old), *old.shape[1:]))))

    def paged(self, group: str, layer: int, plane: str) -> torch.Tensor:
        return self._paged[group, layer, plane]

    def window(self, group: str, layer: int, plane: str) -> torch.Tensor:
        return self._windows[group, layer, plane]

    def state(self, section: str, plane: str) -> torch.Tensor:
        return self._states[section, plane]


@dataclass(frozen=True, slots=True)
class Ring:
    """The ring of one layer: by position modulo capacity, positions [begin, end) are there."""

    rows: Rows
    begin: int
    end: int

    @property
    def capacity(self) -> int:
        return len(self.rows)


@dataclass(frozen=True, slots=True)
class Paged:
    """The paged rows of one layer by group number."""

    rows: Rows

    def view(self, count: int) -> Rows:
        return Rows(self.rows.format, *(plane.flatten(0, 1)[:count] for plane in self.rows.planes()))


class SequenceCache:
    """Windows of every layer and draft stage, latents and index keys of the KV sources, open groups, token ids.

    `length` tokens have been processed; the next one runs at that position. Paged rows are written for `paged_tokens`
    tokens, more than `length` while a prefix hit is being replayed: rows below that are exact and never rewritten.
    Rings hold positions [begin, end).
    """

    def __init__(self, config: DeepseekV41Config, formats: CacheFormats, dtype: torch.dtype = torch.float32) -> None:
        self.config, self.formats, self.dtype = config, formats, dtype
        self.length = self.paged_tokens = self.begin = self.end = 0
        self.ids = torch.empty(0, dtype=torch.int64)
        self.capacity = ring_rows(config, encoder=False)
        """Positions that every ring holds; those of the encoder hold more."""
        self._pool = _Pool(config, formats, dtype)
        self.layers = LayerCaches(config, formats, self._pool)

    def start(self, ids: torch.Tensor, tail_start: int | None) -> Segment:
        """Make room for ids at positions `length`.. and describe them; `tail_start` where the prompt is trimmed."""
        self.ids = torch.cat((self.ids[: self.length], ids))
        blocks = -(-len(self.ids) // self.config.sliding_window)
        if blocks > self._pool.blocks:
            self._pool.grow(blocks)
            self.layers = LayerCaches(self.config, self.formats, self._pool)
        before = self.config.engram_max_ngram_size - 1
        return Segment(
            start=0,
            count=len(ids),
            context=self.length,
            slots=list(range(blocks)),
            paged_from=self.paged_tokens,
            rings_from=self.begin,
            prompt=0 if tail_start is None else tail_start + self.config.sliding_window,
            before=tuple(self.ids[max(0, self.length - before) : self.length].tolist()),
        )

    def commit(self, count: int) -> None:
        """The tokens that `start` described have been processed."""
        self.length += count
        self.paged_tokens = max(self.paged_tokens, self.length)
        self.end = self.length
        self.begin = max(self.begin, self.end - self.capacity)

    def rollback(self, length: int) -> None:
        """Forget the tokens from position `length` on (rejected drafts), at most a draft's worth.

        Raises `CacheError` when window rows that the next token sees are gone, and leaves the cache as it was.
        """
        if not 0 <= length <= self.length:
            raise CacheError(f"cannot go back to {length}: {self.length} tokens have been processed")
        # A draft at `length` sees one row more than a token there.
        overwritten = self.end - self.begin == self.capacity
        if length < self.begin or (overwritten and max(length - self.config.sliding_window, 0) < self.begin):
            raise CacheError(f"cannot go back to {length}: the rings have [{self.begin}, {self.end})")
        self.length = self.paged_tokens = self.end = length
        self.ids = self.ids[:length]

    def replay_from(self, start: int, windows: dict[int, Rows] | None = None) -> None:
        """Go back to `start` to run tokens again that paged rows exist for, without rewriting those.

        All window rows are dropped. `windows` gives back the rows of the positions just before `start` (as many as
        there are), of layers 0..cut: only for a trimmed prefill, whose later layers see nothing from before the tail.
        """
        if not 0 <= start <= self.length:
            raise CacheError(f"cannot replay from {start}: {self.length} tokens have been processed")
        self.begin = self.end = self.length = start
        for layer, rows in (windows or {}).items():
            self.begin = start - len(rows)
            ring = self.layers.window(layer)
            place = torch.arange(self.begin, start) % self._ring_rows(layer)
            ring.put(Places(torch.zeros_like(place), place), rows)

    def prefix(self, tokens: int, ids: torch.Tensor) -> SequenceCache:
        """A new cache with the paged rows of the first `tokens` tokens and nothing else: a prefix hit.

        `tokens` must end every open group. `ids` are the hit's token ids.
        """
        ratios = {self.config.ratio(layer) for layer in self.config.kv_source_layer_ids}
        if any(tokens % ratio for ratio in ratios) or tokens > self.paged_tokens:
            raise CacheError(f"{tokens} tokens are no usable prefix of {self.paged_tokens}")
        hit = SequenceCache(self.config, self.formats, self.dtype)
        hit.start(ids[:tokens], None)
        for layer in self.config.kv_source_layer_ids:
            count = tokens // self.config.ratio(layer)
            for mine, theirs in ((self.latents, hit.latents), (self.index_keys, hit.index_keys)):
                pairs = zip(mine[layer].view(count).planes(), theirs[layer].view(count).planes(), strict=True)
                for source, target in pairs:
                    target.copy_(source)
        hit.length = hit.paged_tokens = hit.begin = hit.end = tokens
        return hit

    def window_rows(self, first: int, last: int, layers: range) -> dict[int, Rows]:
        """Copies of the window rows of positions [first, last): what a sidecar stores."""
        if first < last and not self.begin <= first <= last <= self.end:
            raise CacheError(f"window rows [{first}, {last}) are not held; the rings have [{self.begin}, {self.end})")
        positions = torch.arange(first, last)
        places = {layer: positions % self._ring_rows(layer) for layer in layers}
        return {
            layer: self.layers.window(layer).at(Places(torch.zeros_like(place), place))
            for layer, place in places.items()
        }

    def _ring_rows(self, layer: int) -> int:
        return ring_rows(self.config, encoder=layer <= self.config.cut)

    @property
    def latents(self) -> dict[int, Paged]:
        return {layer: Paged(self.layers.latents(layer)) for layer in self.config.kv_source_layer_ids}

    @property
    def index_keys(self) -> dict[int, Paged]:
        return {layer: Paged(self.layers.index_keys(layer)) for layer in self.config.kv_source_layer_ids}

    @property
    def windows(self) -> list[Ring]:
        return [self._ring(self.layers.window(layer)) for layer in range(self.config.num_hidden_layers)]

    @property
    def draft_windows(self) -> list[Ring]:
        return [self._ring(self.layers.draft_window(s)) for s in range(self.config.num_nextn_predict_layers)]

    def _ring(self, rows: Rows) -> Ring:
        return Ring(Rows(rows.format, *(plane[0] for plane in rows.planes())), self.begin, self.end)
