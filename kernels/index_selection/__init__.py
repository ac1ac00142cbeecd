"""Which groups each row attends to, from paged index keys, without a matrix of scores (V4.1 specification, 5.3).

The same choice as `index_scores`, `candidate_blocks`, `restrict_to_blocks` and `select_positions` of
`kernels.sparse_attention`, which remain where `takes` says no: for floats, for float64, and without a compiler.
Products of rounded queries and keys are exact within 32 channels; what is rounded are sums over those and over heads,
in one order, so that rows are equal to the bit in any company.
"""

from __future__ import annotations

import torch

from kernels.index_selection import native
from kernels.index_selection.forms import Blocks, KeyTiles
from kernels.quantization import Rows

__all__ = ["Blocks", "KeyTiles", "pack_keys", "select", "takes"]


def takes(pool: Rows, dtype: torch.dtype) -> bool:
    """Whether queries of this dtype over keys of this pool are served here."""
    return native.takes(pool, dtype)


def pack_keys(pool: Rows, tables: torch.Tensor, counts: list[int]) -> KeyTiles:
    """The first counts[r] keys of each run, by block of tables int64 [runs, blocks], all of them in the pool."""
    return native.pack_keys(pool, tables, counts)


def select(
    queries: torch.Tensor,
    weights: torch.Tensor,
    keys: KeyTiles,
    owner: torch.Tensor,
    visible: torch.Tensor,
    *,
    count: int,
    width: int,
    blocks: Blocks | None = None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The `count` best of the first `visible` keys of run `owner` (int64 [T]), ascending, then -1: int64 [T, width].

    queries [T, h, d], already rounded as keys are; weights float32 [T, h]; a row sees no more keys than its run has,
    and `width` holds what it may choose. Ties go to the lowest position. With `blocks` that allow, only their positions
    compete (a row that sees at most `count` takes all: candidates hold as many). With `blocks` to be found, also int32
    [T, blocks.count]: those of the best positions, the newest always among them.
    """
    return native.select(queries, weights, keys, owner, visible, count=count, width=width, blocks=blocks)
