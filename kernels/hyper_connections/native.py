"""Hyper-connections by the C++ kernels (`native.cpp`): four streams, float32, contiguous rows."""

from __future__ import annotations

import functools
from typing import Any

import torch

from kernels.native import FLOAT as F
from kernels.native import NUMBER as N
from kernels.native import POINTER as P
from kernels.native import declare

STREAMS = 4


@functools.cache
def _functions() -> tuple[Any, ...] | None:
    return declare(
        galley_hc_mix=(P, N, N, P, P, P, F, F, N, P, P, P, N),
        galley_hc_collapse=(P, P, N, N, P, F, P, N),
        galley_hc_expand=(P, P, P, P, N, N, P, N),
    )


def takes(residual: torch.Tensor, *others: torch.Tensor) -> bool:
    """Whether these inputs can be served; the streams come first."""
    return (
        residual.shape[1] == STREAMS
        and residual.device.type == "cpu"
        and all(x.dtype == torch.float32 and x.is_contiguous() for x in (residual, *others))
        and _functions() is not None
    )


def mix(
    residual: torch.Tensor,
    fn: torch.Tensor,
    scale: torch.Tensor,
    base: torch.Tensor,
    rms_eps: float,
    hc_eps: float,
    iterations: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    functions = _functions()
    assert functions is not None
    rows, n, channels = residual.shape
    pre, post, matrix = residual.new_empty(rows, n), residual.new_empty(rows, n), residual.new_empty(rows, n, n)
    functions[0](
        residual.data_ptr(), rows, channels, fn.data_ptr(), scale.data_ptr(), base.data_ptr(), rms_eps, hc_eps,
        iterations, pre.data_ptr(), post.data_ptr(), matrix.data_ptr(), torch.get_num_threads(),
    )  # fmt: skip
    return pre, post, matrix


def collapse(residual: torch.Tensor, pre: torch.Tensor, norm: torch.Tensor | None, eps: float) -> torch.Tensor:
    functions = _functions()
    assert functions is not None
    rows, _, channels = residual.shape
    out = residual.new_empty(rows, channels)
    weight = None if norm is None else norm.data_ptr()
    functions[1](
        residual.data_ptr(), pre.data_ptr(), rows, channels, weight, eps, out.data_ptr(), torch.get_num_threads()
    )
    return out


def expand(residual: torch.Tensor, output: torch.Tensor, post: torch.Tensor, matrix: torch.Tensor) -> torch.Tensor:
    functions = _functions()
    assert functions is not None
    rows, _, channels = residual.shape
    out = torch.empty_like(residual)
    functions[2](
        residual.data_ptr(), output.data_ptr(), post.data_ptr(), matrix.data_ptr(), rows, channels, out.data_ptr(),
        torch.get_num_threads(),
    )  # fmt: skip
    return out
