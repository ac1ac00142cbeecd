"""Linear layers by the C++ kernels (`native.cpp`): packing of weights, and the calls."""

from __future__ import annotations

import ctypes
import functools
from dataclasses import dataclass
from typing import Any

import torch

from kernels.native import FLOAT as F
from kernels.native import NUMBER as N
from kernels.native import POINTER as P
from kernels.native import declare

PANEL = 16
PLAIN, RMS_NORM, SILU_MUL = 0, 1, 2
_KINDS = {"fp32": 0, "bf16": 1, "w8": 2, "w8a8": 2}
_LEVELS = {"w8": 8191, "w8a8": 127}


class _Call(ctypes.Structure):
    """`Call` of native.cpp."""

    _fields_ = (
        ("weights", ctypes.c_void_p),
        ("scales", ctypes.c_void_p),
        ("outputs", ctypes.c_int64),
        ("inputs", ctypes.c_int64),
        ("format", ctypes.c_int64),
        ("levels", ctypes.c_int64),
    )


@dataclass(frozen=True, slots=True)
class PackedWeight:
    """Panels of 16 outputs. `values`: float32 [panels, k, 16]; bfloat16 [panels, k, 8, 2], outputs i and i + 8 side by
    side; int8 [panels, ceil(k / 2), 16, 2], neighbours along k side by side. Outputs and k are padded with zeros.
    """

    values: torch.Tensor
    scales: torch.Tensor | None
    outputs: int
    inputs: int
    call: ctypes.Structure
    address: int
    """Of `call`."""


@functools.cache
def _function() -> Any:
    found = declare(galley_linear=(P, P, N, N, N, P, F, P, N, N, N))
    return None if found is None else found[0]


def pack(values: torch.Tensor, scales: torch.Tensor | None, weight_format: str) -> PackedWeight | None:
    """`values` float32 [m, k] (whole numbers where there are `scales` [m]); None without native kernels."""
    if _function() is None:
        return None
    outputs, inputs = values.shape
    panels = -(-outputs // PANEL)
    step = 2 if scales is not None else 1
    padded = torch.zeros(panels * PANEL, -(-inputs // step) * step)
    padded[:outputs, :inputs] = values
    if scales is not None:
        packed = padded.to(torch.int8).view(panels, PANEL, -1, 2).permute(0, 2, 1, 3).contiguous()
        scales = scales.contiguous()
    elif weight_format == "bf16":
        packed = padded.to(torch.bfloat16).view(panels, 2, 8, -1).permute(0, 3, 2, 1).contiguous()
    else:
        packed = padded.view(panels, PANEL, -1).transpose(1, 2).contiguous()
    call = _Call(
        packed.data_ptr(),
        scales.data_ptr() if scales is not None else None,
        outputs,
        inputs,
        _KINDS[weight_format],
        _LEVELS.get(weight_format, 0),
    )
    return PackedWeight(packed, scales, outputs, inputs, call, ctypes.addressof(call))


def rows(weight: PackedWeight, index: torch.Tensor) -> torch.Tensor:
    """float32 [n, inputs]: the weight's rows `index`."""
    panels, lanes = index // PANEL, index % PANEL
    if weight.scales is not None:
        found = weight.values[panels, :, lanes].flatten(1)[:, : weight.inputs].float()
        return found * weight.scales[index, None]
    if weight.values.dtype == torch.bfloat16:
        return weight.values[panels, :, lanes % 8, lanes // 8].float()
    return weight.values[panels, :, lanes]


def linear(
    x: torch.Tensor,
    weight: PackedWeight,
    prologue: int = PLAIN,
    norm: torch.Tensor | None = None,
    eps: float = 0.0,
    target: torch.Tensor | None = None,
) -> torch.Tensor:
    """`f(x) W^T`, added to `target` [n, m] where that is given. x float32 [n, k], or [n, 2 k] for SILU_MUL."""
    count, width = x.shape
    out = x.new_empty(count, weight.outputs) if target is None else target
    if width != (2 * weight.inputs if prologue == SILU_MUL else weight.inputs) or out.shape != (count, weight.outputs):
        raise ValueError(
            f"rows {tuple(x.shape)} and result {tuple(out.shape)} do not fit {weight.outputs} x {weight.inputs}"
        )
    if x.dtype != torch.float32 or out.dtype != torch.float32:
        raise TypeError(f"rows are float32, not {x.dtype} and {out.dtype}")
    if norm is not None and (norm.dtype != torch.float32 or norm.shape != (width,) or not norm.is_contiguous()):
        raise ValueError(f"a norm of {width} float32 channels is wanted")
    if width and x.stride(1) != 1:
        x = x.contiguous()
    if out.stride(1) != 1:
        raise ValueError("the result's channels lie side by side")
    if count:
        function = _function()
        assert function is not None, "packed weights exist only beside the kernels"
        function(
            weight.address,
            x.data_ptr(),
            count,
            x.stride(0),
            prologue,
            None if norm is None else norm.data_ptr(),
            eps,
            out.data_ptr(),
            out.stride(0),
            target is not None,
            torch.get_num_threads(),
        )
    return out
