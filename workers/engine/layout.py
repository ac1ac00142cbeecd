"""The cache's layout in memory: the only place that knows where in a block a row lies (decision 0004).

A block is one contiguous run of bytes: group by group, layer by layer, plane by plane, each (layer, plane) region
aligned to 64 bytes. A region holds the block's rows of one plane of one layer. Layers see a region of every block at
once through one strided view, so that nothing below a block is ever addressed by hand.
"""

from __future__ import annotations

from dataclasses import dataclass

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


class CacheLayout:
    """Offsets of every region of a block, from a model's declaration."""

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

    def blocks_for(self, tokens: int) -> int:
        """Blocks that hold `tokens` tokens."""
        return -(-tokens // self.block_tokens)

    def views(self, blocks: torch.Tensor) -> PoolViews:
        """Views of a pool: `blocks` is uint8 [slots, block_bytes], contiguous, aligned to 64 bytes."""
        if blocks.dtype != torch.uint8 or blocks.dim() != 2 or blocks.shape[1] != self.block_bytes:
            raise ValueError(f"a pool is uint8 [slots, {self.block_bytes}], not {blocks.dtype} {tuple(blocks.shape)}")
        return PoolViews(self, blocks)


class PoolViews:
    """`workers.models.base.CacheViews` over a pool's bytes."""

    def __init__(self, layout: CacheLayout, blocks: torch.Tensor) -> None:
        self._views = {
            key: blocks[:, region.offset : region.offset + region.nbytes]
            .view(region.dtype)
            .view(blocks.shape[0], *region.shape)
            for key, region in layout.regions.items()
        }

    def paged(self, group: str, layer: int, plane: str) -> torch.Tensor:
        return self._views[group, layer, plane]


def _region(spec: CacheSpec, group: PagedGroup, plane: Plane, offset: int) -> Region:
    rows = spec.block_tokens // group.ratio
    shape = (*plane.shape[: plane.rows_axis], rows, *plane.shape[plane.rows_axis :])
    return Region(offset, rows * plane.row_bytes, shape, plane.dtype)


def _align(offset: int) -> int:
    return -(-offset // ALIGNMENT) * ALIGNMENT
