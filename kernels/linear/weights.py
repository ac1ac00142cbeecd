"""Weights of linear layers in their runtime formats."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch

from kernels.linear import reference

FORMATS = {"fp32": torch.float32, "bf16": torch.bfloat16}
_TILES = (16, 8, 4, 2, 1)


@dataclass(frozen=True, slots=True)
class LinearWeight:
    """A weight [m, k]. `tile` None lets the library choose shapes; a number makes rows independent (see `linear`)."""

    values: torch.Tensor
    tile: int | None = None

    @classmethod
    def prepare(cls, values: torch.Tensor, weight_format: str, *, batch_invariant: bool) -> LinearWeight:
        """From float32 [m, k]. Raises KeyError for an unknown format."""
        packed = values.to(FORMATS[weight_format]).contiguous()
        return cls(packed, row_invariant_tile(*packed.shape, packed.dtype) if batch_invariant else None)


@functools.cache
def row_invariant_tile(outputs: int, inputs: int, dtype: torch.dtype) -> int:
    """The largest tile in which a row gets the same bits at every place, found by trying with a random weight.

    A matrix library is free to treat the rows at a tile's edge by other code than those inside. One row (tile 1) is
    always independent.
    """
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(outputs, inputs, generator=generator).to(dtype)
    probe = torch.randn(max(_TILES), inputs, generator=generator)
    for tile in _TILES:
        rows = probe[:tile]
        expected = reference.linear_tiled(rows, weight, tile)
        if all(
            torch.equal(reference.linear_tiled(rows.roll(shift, 0), weight, tile).roll(-shift, 0), expected)
            for shift in range(1, tile)
        ):
            return tile
    raise AssertionError("a single row depends on the others")
