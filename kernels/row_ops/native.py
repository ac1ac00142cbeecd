"""Norm and rotation by the C++ kernels (`native.cpp`): float32 rows of whole vectors on the CPU."""

from __future__ import annotations

import functools
from typing import Any

import torch

from kernels.native import FLOAT as F
from kernels.native import NUMBER as N
from kernels.native import POINTER as P
from kernels.native import declare

_WHOLE_VECTORS = 16


@functools.cache
def _functions() -> tuple[Any, ...] | None:
    return declare(
        galley_norm_rotate=(P, N, N, P, F, P, N, P),
        galley_rotate=(P, N, N, N, P, N),
    )


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
