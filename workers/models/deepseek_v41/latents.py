"""What the layers of one forward pass read from the paged caches: latents and index keys of the current KV owner.

Three values travel down the stack (V4.1 specification, section 5.4): the owner's rows, the selection of the current
index source, the candidate blocks. Rows are unpacked once and shared by all layers that read them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kernels import index_selection
from kernels.index_selection import KeyTiles
from kernels.quantization import Places, Rows, read_rows
from kernels.sparse_attention import Source
from workers.models.deepseek_v41.formats import CacheFormats
from workers.models.deepseek_v41.groups import VisibleGroups
from workers.models.deepseek_v41.indexer import Candidates, Choice
from workers.models.deepseek_v41.layer_caches import LayerCaches

KEPT_ELEMENTS = 2**21
"""A selection's keys are kept for the next layers where they have at most so many elements."""


@dataclass(frozen=True, slots=True)
class Selected:
    """The latents that each row chose, as a source of attention, and what hides the places without one [T, K]."""

    source: Source
    bias: torch.Tensor


class LatentReader:
    """For one forward pass. `dtype`: that of unpacked rows, at least float32."""

    def __init__(self, caches: LayerCaches, dtype: torch.dtype) -> None:
        self.caches, self.dtype = caches, dtype
        self.formats: CacheFormats = caches.formats
        self.candidates: Candidates | None = None
        self.selected: Selected | None = None
        self._keys: dict[tuple[int, int], KeyTiles | torch.Tensor] = {}

    def index_keys(self, owner: int, groups: VisibleGroups) -> KeyTiles | torch.Tensor:
        """Tiles for `index_selection` where it takes them; else [all visible groups, index_head_dim], by run and
        group.
        """
        key = (owner, id(groups))
        if key not in self._keys:
            pool = self.caches.index_keys(owner)
            if index_selection.takes(pool, self.dtype):
                self._keys = {key: index_selection.pack_keys(pool, groups.tables, groups.counts)}
            else:
                self._keys = {key: self._unpack(pool, groups.places)}
        return self._keys[key]

    def choose(self, owner: int, groups: VisibleGroups, choice: Choice) -> None:
        """Take over what an index source chose."""
        self.candidates = choice.candidates
        self.selected = self._select(owner, groups, choice.selection)

    def _select(self, owner: int, groups: VisibleGroups, selection: torch.Tensor) -> Selected | None:
        rows, width = selection.shape
        if not groups.total:
            if not groups.invariant:
                return None
            # As many keys as ever: none of them is seen.
            bias = torch.full(selection.shape, -torch.inf, dtype=self.dtype)
            return Selected(Source(bias.new_zeros((rows, width, self.caches.config.head_dim))), bias)
        hidden = selection < 0
        bias = torch.zeros(selection.shape, dtype=self.dtype).masked_fill_(hidden, -torch.inf)
        pool = self.caches.latents(owner)
        runs = groups.runs.owner[:, None]
        number = selection.clamp(min=0)
        if selection.numel() >= groups.total and not groups.invariant:
            # Every visible row once, then numbers among them; a hidden place names one that is there.
            index = (groups.base[runs] + number).masked_fill_(hidden, 0)
            return Selected(self._kept(Source(self._unpack(pool, groups.places), index)), bias)
        places = groups.locate(runs, number)
        # A row that sees no group yet points at one that somebody sees: what nobody wrote may not be finite.
        first = groups.somewhere
        places = Places(torch.where(hidden, first.block, places.block), torch.where(hidden, first.row, places.row))
        return Selected(Source(self._unpack(pool, places)), bias)

    def _kept(self, source: Source) -> Source:
        assert source.index is not None
        if source.index.numel() * source.rows.shape[1] <= KEPT_ELEMENTS:
            return Source(source.rows[source.index])
        return source

    def _unpack(self, pool: Rows, places: Places) -> torch.Tensor:
        return read_rows(pool, places, self.dtype)
