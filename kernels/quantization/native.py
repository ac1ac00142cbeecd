"""Cache rows by the C++ kernels (`native.cpp`): packed formats, float32 values, pools of any strides on the CPU."""

from __future__ import annotations

import ctypes
import functools
from typing import Any

import torch

from kernels.native import NUMBER as N
from kernels.native import POINTER as P
from kernels.native import declare
from kernels.quantization.formats import Places, RowFormat, Rows

_FORMATS = {RowFormat.E4M3_POW2_32: 1, RowFormat.E2M1_E4M3_16: 2, RowFormat.E2M1_POW2_32: 3}
_WHOLE_GROUPS = 32


class _Pool(ctypes.Structure):
    """`galley_pool` of native.cpp."""

    _fields_ = tuple(
        (name, ctypes.c_void_p if name in ("data", "scales") else ctypes.c_int64)
        for name in (
            "data", "scales", "data_block", "data_row", "scales_block", "scales_row", "channels", "format"
        )
    )  # fmt: skip


@functools.cache
def _functions() -> tuple[Any, ...] | None:
    return declare(
        galley_rows_write=(P, P, N, P, P, P),
        galley_rows_read=(P, N, P, P, P),
        galley_rows_round=(N, P, N, N, P),
    )


def _function(number: int) -> Any:
    functions = _functions()
    assert functions is not None, "asked for without `takes`"
    return functions[number]


def takes(row_format: RowFormat, channels: int, dtype: torch.dtype, device: torch.device) -> bool:
    """Whether rows of this format can be served as, or made from, floats of this dtype."""
    return (
        row_format in _FORMATS
        and dtype == torch.float32
        and channels % _WHOLE_GROUPS == 0
        and device.type == "cpu"
        and _functions() is not None
    )


def _pool(pool: Rows) -> _Pool:
    data, scales = pool.planes()
    if data.stride(2) != 1 or scales.stride(2) != 1 or data.element_size() != 1 or scales.element_size() != 1:
        raise ValueError("a packed row's bytes lie side by side")
    return _Pool(
        data.data_ptr(),
        scales.data_ptr(),
        data.stride(0),
        data.stride(1),
        scales.stride(0),
        scales.stride(1),
        data.shape[2] * pool.format.channels_per_byte,
        _FORMATS[pool.format],
    )


def write(pool: Rows, places: Places, values: torch.Tensor, *, rounded: bool) -> torch.Tensor | None:
    """Encode values [n, c] to `places`, all of them in the pool; what they decode to if `rounded`."""
    values, block, row = values.contiguous(), places.block.contiguous(), places.row.contiguous()
    out = torch.empty_like(values) if rounded else None
    target = None if out is None else out.data_ptr()
    _function(0)(ctypes.byref(_pool(pool)), values.data_ptr(), len(values), block.data_ptr(), row.data_ptr(), target)
    return out


def read(pool: Rows, places: Places) -> torch.Tensor:
    """float32 [*places' shape, c]; all places are in the pool."""
    block, row = places.block.contiguous(), places.row.contiguous()
    native = _pool(pool)
    out = torch.empty((*block.shape, native.channels))
    _function(1)(ctypes.byref(native), block.numel(), block.data_ptr(), row.data_ptr(), out.data_ptr())
    return out


def round_rows(values: torch.Tensor, row_format: RowFormat) -> torch.Tensor:
    values = values.contiguous()
    out = torch.empty_like(values)
    channels = values.shape[-1]
    _function(2)(_FORMATS[row_format], values.data_ptr(), values.numel() // channels, channels, out.data_ptr())
    return out
