"""Norm and rotation by the C++ kernels (`native.cpp`): float32 rows of whole vectors on the CPU."""

from __future__ import annotations

import ctypes
import functools
from typing import Any

import torch

from kernels.native import library

_WHOLE_VECTORS = 16


@functools.cache
def _functions() -> tuple[Any, Any] | None:
    found = library()
    if found is None:
        return None
    norm, turn = found.galley_norm_rotate, found.galley_rotate
    p, n = ctypes.c_void_p, ctypes.c_int64
    norm.argtypes = (p, n, n, p, ctypes.c_float, p, n, p)
    turn.argtypes = (p, n, n, n, p, n)
    norm.restype = turn.restype = None
    return norm, turn


def takes(x: torch.Tensor) -> bool:
    return (
        x.dtype == torch.float32
        and x.shape[-1] % _WHOLE_VECTORS == 0
        and x.device.type == "cpu"
        and _functions() is not None
    )


def norm_rotate(x: torch.Tensor, weight: torch.Tensor, eps: float, turns: torch.Tensor | None) -> torch.Tensor:
    functions = _functions()
    assert functions is not None, "asked for without `takes`"
    x, weight = x.contiguous(), weight.float().contiguous()
    out, channels = torch.empty_like(x), x.shape[-1]
    pairs, address = 0, None
    if turns is not None:
        turns = _complex(turns, len(x), channels)
        pairs, address = turns.shape[1], turns.data_ptr()
    functions[0](
        x.data_ptr(), x.numel() // channels, channels, weight.data_ptr(), eps, address, pairs, out.data_ptr()
    )  # fmt: skip
    return out


def rotate_(x: torch.Tensor, turns: torch.Tensor) -> torch.Tensor:
    functions = _functions()
    assert functions is not None, "asked for without `takes`"
    if not x.is_contiguous():
        raise ValueError("rows that are rotated in place lie one after the other")
    rows, channels = len(x), x.shape[-1]
    turns = _complex(turns, rows, channels)
    heads = x[0].numel() // channels if rows else 0
    functions[1](x.data_ptr(), rows, heads, channels, turns.data_ptr(), turns.shape[1])
    return x


def _complex(turns: torch.Tensor, rows: int, channels: int) -> torch.Tensor:
    if turns.shape[0] != rows or 2 * turns.shape[1] > channels or turns.dtype != torch.complex64:
        raise ValueError(f"turns {turns.dtype} {list(turns.shape)} do not fit {rows} rows of {channels} channels")
    return turns.resolve_conj().contiguous()
