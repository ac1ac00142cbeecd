"""Weights of linear layers in their runtime formats.

| format | in memory | products |
| --- | --- | --- |
| `fp32` | float32 | float32 |
| `bf16` | bfloat16 | native: of float32 rows, summed in float32; eager: torch's bfloat16 |
| `w8` | int8, one scale per output row | native: of rows as int16, 13 bits and a sign, one scale each; eager: float32 |
| `w8a8` | int8, one scale per output row | rows as int8, one scale per row |

Integer sums are exact. Without native kernels the int8 formats take the memory of float32.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch

from kernels.linear import native, reference

FORMATS = ("fp32", "bf16", "w8", "w8a8")
_TILES = (16, 8, 4, 2, 1)


@dataclass(frozen=True, slots=True)
class LinearWeight:
    """A weight [outputs, inputs], made by `prepare`; what lies in `values` is the format's and the path's business.

    `tile` (eager only) is a number of rows that makes rows independent of each other, or None.
    """

    format: str
    outputs: int
    inputs: int
    values: torch.Tensor
    scales: torch.Tensor | None = None
    tile: int | None = None
    packed: native.PackedWeight | None = None

    @classmethod
    def prepare(cls, values: torch.Tensor, weight_format: str, *, batch_invariant: bool) -> LinearWeight:
        """From float32 [outputs, inputs]. Raises KeyError for an unknown format."""
        if weight_format not in FORMATS:
            raise KeyError(f"weight format {weight_format!r}: one of {', '.join(FORMATS)}")
        outputs, inputs = values.shape
        scales = None
        if weight_format in ("w8", "w8a8"):
            values, scales = quantize_rows(values, 127)
        packed = native.pack(values, scales, weight_format)
        if packed is not None:
            return cls(weight_format, outputs, inputs, packed.values, scales, None, packed)
        if scales is None:
            kept = values.to(torch.bfloat16 if weight_format == "bf16" else torch.float32).contiguous()
        else:
            kept = values * scales[:, None] if weight_format == "w8" else values.contiguous()
        tile = row_invariant_tile(outputs, inputs, kept.dtype) if batch_invariant else None
        return cls(weight_format, outputs, inputs, kept, scales, tile)

    def rows(self, index: torch.Tensor) -> torch.Tensor:
        """Rows of the weight as float32 [n, inputs]: an embedding table that is tied to the output layer."""
        if self.packed is not None:
            return native.rows(self.packed, index)
        found = self.values[index].float()
        return found * self.scales[index, None] if self.format == "w8a8" and self.scales is not None else found


def quantize_rows(values: torch.Tensor, levels: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(whole numbers in [-levels, levels] as float32 [n, k], scales float32 [n]): one scale per row, ties to even.

    A row of zeros has scale 0; one that is not finite gets the scale NaN.
    """
    scales = values.abs().amax(1) / levels if values.shape[1] else values.new_zeros(values.shape[0])
    return (values / scales.clamp(min=torch.finfo(torch.float32).tiny)[:, None]).round_(), scales


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
