"""Attention by the C++ kernels (`native.cpp`)."""

from __future__ import annotations

import ctypes
import functools
from typing import Any

import torch

from kernels.attention.cache import PagedCache
from kernels.attention.plan import AttentionPlan
from kernels.native import NUMBER as N
from kernels.native import POINTER as P
from kernels.native import declare


class _Geometry(ctypes.Structure):
    """`Geometry` of native.cpp."""

    _fields_ = tuple(
        (name, ctypes.c_int64)
        for name in ("heads", "kv_heads", "channels", "block_rows", "key_slot", "value_slot", "query_row")
    )


@functools.cache
def _functions() -> tuple[Any, ...] | None:
    return declare(
        galley_attend=(P, P, P, N, P, P, N, P, P, N),
        galley_rotate_and_write=(P, P, P, P, N, P, N, P, P, N),
    )


def suits(cache: PagedCache) -> bool:
    """Whether the kernels are there and take this cache."""
    return cache.plain and _functions() is not None


@functools.lru_cache(maxsize=64)
def _geometry(
    heads: int, kv_heads: int, channels: int, rows: int, key_slot: int, value_slot: int, query_row: int
) -> tuple[_Geometry, int]:
    geometry = _Geometry(heads, kv_heads, channels, rows, key_slot, value_slot, query_row)
    return geometry, ctypes.addressof(geometry)


def _geometry_of(cache: PagedCache, heads: int, query_row: int) -> int:
    key_slot, value_slot = cache.keys.stride(0), cache.values.stride(0)
    return _geometry(heads, cache.kv_heads, cache.channels, cache.rows, key_slot, value_slot, query_row)[1]


def attend(queries: torch.Tensor, cache: PagedCache, plan: AttentionPlan) -> torch.Tensor:
    """As `kernels.attention.attend`; queries may be strided by rows."""
    functions = _functions()
    assert functions is not None, "the caller asked `suits`"
    count, heads, channels = queries.shape
    if queries.dtype != torch.float32 or channels != cache.channels or heads % cache.kv_heads:
        raise ValueError(f"queries {tuple(queries.shape)} {queries.dtype} do not fit keys {tuple(cache.keys.shape)}")
    if queries.stride()[1:] != (channels, 1):
        queries = queries.contiguous()
    out = torch.empty(count, heads, channels)
    spans, tables = plan.ragged
    if count:
        functions[0](
            queries.data_ptr(),
            cache.keys.data_ptr(),
            cache.values.data_ptr(),
            cache.keys.dtype == torch.bfloat16,
            _geometry_of(cache, heads, queries.stride(0)),
            spans.data_ptr(),
            spans.shape[0],
            tables.data_ptr(),
            out.data_ptr(),
            torch.get_num_threads(),
        )
    return out


def rotate_and_write_(qkv: torch.Tensor, angles: torch.Tensor, cache: PagedCache, plan: AttentionPlan) -> None:
    """As `kernels.attention.rotate_and_write_`; qkv contiguous."""
    functions = _functions()
    assert functions is not None, "the caller asked `suits`"
    count, all_heads, channels = qkv.shape
    if not qkv.is_contiguous() or qkv.dtype != torch.float32 or channels != cache.channels:
        raise ValueError(f"rows {tuple(qkv.shape)} {qkv.dtype} do not fit keys {tuple(cache.keys.shape)}")
    if angles.shape != (count, channels // 2) or not angles.is_contiguous() or angles.dtype != torch.complex64:
        raise ValueError(f"angles {tuple(angles.shape)} do not fit rows {tuple(qkv.shape)}")
    if plan.write_slots.shape[0] != count:
        raise ValueError(f"{count} rows for a plan of {plan.write_slots.shape[0]}")
    if count:
        functions[1](
            qkv.data_ptr(),
            angles.data_ptr(),
            cache.keys.data_ptr(),
            cache.values.data_ptr(),
            cache.keys.dtype == torch.bfloat16,
            _geometry_of(cache, all_heads - 2 * cache.kv_heads, 0),
            count,
            plan.write_slots.data_ptr(),
            plan.write_rows.data_ptr(),
            torch.get_num_threads(),
        )
