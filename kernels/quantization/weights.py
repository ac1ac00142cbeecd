"""A weight as it lies in memory: plain, or still quantised and expanded where it is used."""

from dataclasses import dataclass

import torch

from kernels.quantization import reference
from kernels.quantization.formats import WeightFormat


@dataclass(frozen=True, slots=True)
class Weight:
    """A matrix [r, c], or a stack of them [n, r, c], in one `WeightFormat`; `scales` is None for FLOAT
    only.
    """

    format: WeightFormat
    data: torch.Tensor
    scales: torch.Tensor | None = None

    @classmethod
    def of(cls, data: torch.Tensor) -> "Weight":
        return cls(WeightFormat.FLOAT, data)

    @property
    def nbytes(self) -> int:
        return self.data.nbytes + (0 if self.scales is None else self.scales.nbytes)

    def dense(self, dtype: torch.dtype) -> torch.Tensor:
        """The whole weight as floats; free when it is stored so."""
        return reference.decode_weight(self.data, self.scales, self.format, dtype)

    def __getitem__(self, index: int | slice) -> "Weight":
        """One matrix of a stack, or a run of rows of a matrix (not of FP8_BLOCK, whose scales span 32
        rows).
        """
        if self.format is WeightFormat.FP8_BLOCK and self.data.dim() == 2:
            raise ValueError("a block-quantised matrix cannot be cut by rows")
        return Weight(self.format, self.data[index], None if self.scales is None else self.scales[index])

    def rows(self, index: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """The rows numbered `index` (any shape), as floats [*index.shape, c]: an embedding lookup."""
        if self.format is WeightFormat.FP8_BLOCK:
            raise ValueError("a block-quantised matrix cannot be read by rows")
        flat = index.reshape(-1)
        # index_select on bytes: float8 tensors don't implement every indexing kernel.
        data = self.data.view(torch.uint8) if self.format is not WeightFormat.FLOAT else self.data
        scales = None if self.scales is None else self.scales.index_select(0, flat)
        values = reference.decode_weight(data.index_select(0, flat), scales, self.format, dtype)
        return values.unflatten(0, index.shape) if index.dim() else values[0]

    def linear(self, x: torch.Tensor) -> torch.Tensor:
        """`x W^T` for x [..., c], in x's dtype."""
        return torch.nn.functional.linear(x, self.dense(x.dtype))
