"""The number formats that V4.1 stores rows and weights in, and pools of rows in them.

Everything is bytes: e4m3 and e2m1 payloads and their scales are uint8 tensors, so that copying, sending and
hashing never touch a numeric conversion.
"""

import enum
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Places:
    """Rows of a block-major pool by block and row within it, int64 of one shape: worked out once for many layers."""

    block: torch.Tensor
    row: torch.Tensor

    def __len__(self) -> int:
        return self.block.shape[0]

    def __getitem__(self, index: torch.Tensor | slice) -> "Places":
        return Places(self.block[index], self.row[index])


class RowFormat(enum.StrEnum):
    """How a cache row is stored. Sizes at 512 channels (128 for index keys) are 528, 288 and 68 bytes."""

    FLOAT = "float"
    """As it is, in the pool's own dtype; no scales."""
    E4M3_POW2_32 = "e4m3_pow2_32"
    """Window rows: e4m3, one power-of-two scale (ue8m0 byte) per 32 channels."""
    E2M1_E4M3_16 = "e2m1_e4m3_16"
    """Latents: e2m1 pairs, one e4m3 scale per 16 channels."""
    E2M1_POW2_32 = "e2m1_pow2_32"
    """Index keys and queries: e2m1 pairs, one power-of-two scale (ue8m0 byte) per 32 channels."""

    @property
    def channels_per_scale(self) -> int:
        return {"float": 1, "e4m3_pow2_32": 32, "e2m1_e4m3_16": 16, "e2m1_pow2_32": 32}[self.value]

    @property
    def channels_per_byte(self) -> int:
        return 2 if self.value.startswith("e2m1") else 1


class WeightFormat(enum.StrEnum):
    """How a weight is stored (V4.1 specification, section 8)."""

    FLOAT = "float"
    FP8_BLOCK = "fp8_block"
    """e4m3 [r, c], ue8m0 scales [ceil(r/32), ceil(c/32)]."""
    FP8_ROW = "fp8_row"
    """e4m3 [r, c], ue8m0 scales [r, ceil(c/32)] (the Engram tables)."""
    MXFP4 = "mxfp4"
    """e2m1 pairs [r, c/2], low nibble = even column, ue8m0 scales [r, ceil(c/32)]."""


@dataclass(frozen=True, slots=True)
class Rows:
    """A pool of cache rows: flat ([rows, ...]) or block-major ([blocks, rows per block, ...]); strided views will do.

    A row's number is `block * rows_per_block + row`. `scales` is None for `RowFormat.FLOAT` only.
    """

    format: RowFormat
    data: torch.Tensor
    scales: torch.Tensor | None = None

    def planes(self) -> tuple[torch.Tensor, ...]:
        return (self.data,) if self.scales is None else (self.data, self.scales)

    @property
    def channels(self) -> int:
        return self.data.shape[-1] * self.format.channels_per_byte

    def take(self, index: torch.Tensor) -> "Rows":
        """The rows numbered `index` (any shape, all >= 0), still packed: planes of shape [*index.shape,
        bytes].
        """
        return Rows(self.format, *(_take(plane, index) for plane in self.planes()))

    def at(self, places: Places) -> "Rows":
        """The rows of a block-major pool at `places`, still packed: planes of shape [*places' shape, bytes]."""
        return Rows(self.format, *(plane[places.block, places.row] for plane in self.planes()))

    def put(self, places: Places, rows: "Rows") -> None:
        """Write `rows` [n, bytes] of the same format at `places` [n] of a block-major pool."""
        for plane, values in zip(self.planes(), rows.planes(), strict=True):
            plane.index_put_((places.block, places.row), values)

    def cut(self, part: torch.Tensor | slice) -> "Rows":
        """Some rows of a flat pool, still packed."""
        return Rows(self.format, *(plane[part] for plane in self.planes()))

    def __len__(self) -> int:
        return self.data.shape[0] if self.data.dim() == 2 else self.data.shape[0] * self.data.shape[1]


def _take(plane: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    if plane.dim() == 2:
        return plane[index]
    per_block = plane.shape[1]
    return plane[index // per_block, index % per_block]
