"""Work on rows, all at once or in tiles of fixed shape.

What a matrix library or a vectorised loop does to a row may depend on the shape of the whole: in the last bits. Where
results must not depend on company, every piece of work runs on the same number of rows, the last tile padded.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

Tensors = tuple[torch.Tensor, ...]


@dataclass(frozen=True, slots=True)
class Tiling:
    """`rows` in a tile; None takes all at once."""

    rows: int | None = None

    def __call__(self, work: Callable[..., Tensors], *inputs: torch.Tensor) -> Tensors:
        """`work(*inputs)`: every input and output has rows on its first axis, and at least one output is given back.

        Padding rows are zeros. Without any row, `work` runs on none.
        """
        count = len(inputs[0])
        if self.rows is None or not count:
            return work(*inputs)
        parts = [self._tile(work, [x[i : i + self.rows] for x in inputs]) for i in range(0, count, self.rows)]
        return tuple(torch.cat(columns)[:count] for columns in zip(*parts, strict=True))

    def _tile(self, work: Callable[..., Tensors], inputs: list[torch.Tensor]) -> Tensors:
        assert self.rows is not None
        missing = self.rows - len(inputs[0])
        if missing:
            inputs = [torch.cat((x, x.new_zeros((missing, *x.shape[1:])))) for x in inputs]
        return work(*(x.contiguous() for x in inputs))
