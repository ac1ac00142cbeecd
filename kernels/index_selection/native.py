"""Selection by the C++ kernels (`native.cpp`): packed keys in a pool of any strides, float32 queries, on the CPU."""

from __future__ import annotations

import functools
from typing import Any

import torch

from kernels.index_selection.forms import Blocks, KeyTiles
from kernels.native import NUMBER as N
from kernels.native import POINTER as P
from kernels.native import declare
from kernels.quantization.formats import RowFormat, Rows

_KEYS, _GROUP = 8, 32


@functools.cache
def _functions() -> tuple[Any, ...] | None:
    return declare(
        galley_index_tiles=(P, P, N, N, N, N, N, N, P, P, P, N, N, P, P, N),
        galley_index_select=(P, P, N, N, N, P, P, P, P, P, N, N, P, N, N, P, P, N),
    )


def takes(pool: Rows, dtype: torch.dtype) -> bool:
    return (
        pool.format is RowFormat.E2M1_POW2_32
        and dtype == torch.float32
        and pool.channels % _GROUP == 0
        and pool.data.device.type == "cpu"
        and _functions() is not None
    )


def pack_keys(pool: Rows, tables: torch.Tensor, counts: list[int]) -> KeyTiles:
    functions = _functions()
    assert functions is not None, "asked for without `takes`"
    data, scales = pool.planes()
    if data.stride(2) != 1 or scales.stride(2) != 1:
        raise ValueError("a packed row's bytes lie side by side")
    groups, tables = pool.channels // _GROUP, tables.contiguous()
    number = torch.tensor(counts, dtype=torch.int64)
    tiles = torch.div(number + (_KEYS - 1), _KEYS, rounding_mode="floor")
    first, total = tiles.cumsum(0) - tiles, int(tiles.sum())
    packed = KeyTiles(
        torch.zeros((total, groups, _KEYS * _GROUP), dtype=torch.uint8), torch.zeros((total, groups, _KEYS)), first
    )
    functions[0](
        data.data_ptr(), scales.data_ptr(), data.stride(0), data.stride(1), scales.stride(0), scales.stride(1), groups,
        len(counts), number.data_ptr(), first.data_ptr(), tables.data_ptr(), tables.shape[1], data.shape[1],
        packed.codes.data_ptr(), packed.scales.data_ptr(), torch.get_num_threads(),
    )  # fmt: skip
    return packed


def select(
    queries: torch.Tensor,
    weights: torch.Tensor,
    keys: KeyTiles,
    owner: torch.Tensor,
    visible: torch.Tensor,
    *,
    count: int,
    width: int,
    blocks: Blocks | None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    functions = _functions()
    assert functions is not None, "asked for without `takes`"
    rows, heads, channels = queries.shape
    queries, weights, owner, visible = (x.contiguous() for x in (queries, weights, owner, visible))
    selection = torch.empty((rows, width), dtype=torch.int64)
    allowed = found = None
    if blocks is not None:
        allowed = blocks.allowed
        found = torch.empty((rows, blocks.count), dtype=torch.int32) if allowed is None else None
    functions[1](
        queries.data_ptr(), weights.data_ptr(), rows, heads, channels // _GROUP, keys.codes.data_ptr(),
        keys.scales.data_ptr(), keys.first.data_ptr(), owner.data_ptr(), visible.data_ptr(), count, width,
        selection.data_ptr(), blocks.size if blocks else 1, blocks.count if blocks else 0,
        None if allowed is None else allowed.data_ptr(), None if found is None else found.data_ptr(),
        torch.get_num_threads(),
    )  # fmt: skip
    return selection, found
