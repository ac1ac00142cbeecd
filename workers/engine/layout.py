"""The cache's layout in memory: the only place that knows where in a block or a seat a row lies (decisions 0004, 0011).

A block is one contiguous run of bytes: group by group, layer by layer, plane by plane, each (layer, plane) region
aligned to 64 bytes. A region holds the block's rows of one plane of one layer. Layers see a region of every block at
once through one strided view, so that nothing below a block is ever addressed by hand.

A seat is the same for what a request has besides blocks: section by section (each window group and each state), plane
by plane. A section is one run of bytes, so that it is sent and put aside in one copy.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import torch

from workers.models.base import CacheSpec, PagedGroup, Plane

ALIGNMENT = 64


@dataclass(frozen=True, slots=True)
class Region:
    """Bytes [offset, offset + nbytes) of every block, seen as `shape` of `dtype`."""

    offset: int
    nbytes: int
    shape: tuple[int, ...]
    dtype: torch.dtype


@dataclass(frozen=True, slots=True)
class Section:
    """Bytes [offset, offset + nbytes) of every seat: the rings of a window group, or a state."""

    name: str
    version: int
    offset: int
    nbytes: int


class CacheLayout:
    """Offsets of every region of a block and of a seat, from a model's declaration."""

    def __init__(self, spec: CacheSpec) -> None:
        self.spec = spec
        self.block_tokens = spec.block_tokens
        self.regions: dict[tuple[str, int, str], Region] = {}
        offset = 0
        for group in spec.paged:
            for layer in group.layers:
                for plane in group.planes:
                    region = _region(spec, group, plane, offset)
                    self.regions[group.name, layer, plane.name] = region
                    offset = _align(offset + region.nbytes)
        self.block_bytes = max(offset, ALIGNMENT)
        self.window_regions: dict[tuple[str, int, str], Region] = {}
        self.state_regions: dict[tuple[str, str], Region] = {}
        self.sections: list[Section] = []
        self.seat_bytes = 0
        """0 for a model that keeps blocks only."""
        self._lay_out_seat()

    def _lay_out_seat(self) -> None:
        for window in self.spec.windows:
            begin = self.seat_bytes
            for layer in window.layers:
                for plane in window.planes:
                    self.window_regions[window.name, layer, plane.name] = self._take_seat(plane, (window.rows,))
            self._close_section(window.name, self.spec.layout_version, begin)
        for state in self.spec.states:
            begin = self.seat_bytes
            for plane in state.planes:
                self.state_regions[state.name, plane.name] = self._take_seat(plane, ())
            self._close_section(state.name, state.version, begin)

    def _take_seat(self, plane: Plane, rows: tuple[int, ...]) -> Region:
        shape = (*rows, *plane.shape)
        region = Region(self.seat_bytes, prod(shape) * plane.dtype.itemsize, shape, plane.dtype)
        self.seat_bytes = _align(region.offset + region.nbytes)
        return region

    def _close_section(self, name: str, version: int, begin: int) -> None:
        if any(section.name == name for section in self.sections):
            raise ValueError(f"two sections are called {name}")
        self.sections.append(Section(name, version, begin, self.seat_bytes - begin))

    def blocks_for(self, tokens: int) -> int:
        """Blocks that hold `tokens` tokens."""
        return -(-tokens // self.block_tokens)

    def views(self, blocks: torch.Tensor, seats: torch.Tensor | None = None) -> PoolViews:
        """Views of a pool: `blocks` is uint8 [slots, block_bytes], `seats` uint8 [seats, seat_bytes] where there are
        any; both contiguous and aligned to 64 bytes.
        """
        if seats is None:
            seats = torch.empty((0, self.seat_bytes), dtype=torch.uint8)
        for memory, width in ((blocks, self.block_bytes), (seats, self.seat_bytes)):
            if memory.dtype != torch.uint8 or memory.dim() != 2 or memory.shape[1] != width:
                raise ValueError(f"a pool is uint8 [n, {width}], not {memory.dtype} {tuple(memory.shape)}")
        return PoolViews(self, blocks, seats)


class PoolViews:
    """`workers.models.base.CacheViews` over a pool's bytes."""

    def __init__(self, layout: CacheLayout, blocks: torch.Tensor, seats: torch.Tensor) -> None:
        self._paged = {key: _view(blocks, region) for key, region in layout.regions.items()}
        self._windows = {key: _view(seats, region) for key, region in layout.window_regions.items()}
        self._states = {key: _view(seats, region) for key, region in layout.state_regions.items()}

    def paged(self, group: str, layer: int, plane: str) -> torch.Tensor:
        return self._paged[group, layer, plane]

    def window(self, group: str, layer: int, plane: str) -> torch.Tensor:
        return self._windows[group, layer, plane]

    def state(self, section: str, plane: str) -> torch.Tensor:
        return self._states[section, plane]


def _view(memory: torch.Tensor, region: Region) -> torch.Tensor:
    """The region of every block or seat: [n, *shape]."""
    part = memory[:, region.offset : region.offset + region.nbytes]
    return part.view(region.dtype).view(memory.shape[0], *region.shape)


def _region(spec: CacheSpec, group: PagedGroup, plane: Plane, offset: int) -> Region:
    rows = spec.block_tokens // group.ratio
    shape = (*plane.shape[: plane.rows_axis], rows, *plane.shape[plane.rows_axis :])
    return Region(offset, rows * plane.row_bytes, shape, plane.dtype)


def _align(offset: int) -> int:
    return -(-offset // ALIGNMENT) * ALIGNMENT
