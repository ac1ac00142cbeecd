"""Routed experts by the C++ kernel (`native.cpp`), their weights in any format of `kernels.linear`."""

from __future__ import annotations

import ctypes
import functools
from dataclasses import dataclass
from typing import Any

import torch

from kernels.linear import LinearWeight
from kernels.native import FLOAT as F
from kernels.native import NUMBER as N
from kernels.native import POINTER as P
from kernels.native import declare


@dataclass(frozen=True, slots=True)
class PackedExperts:
    """`w1`, `w3` and `w2` of every expert, packed; `addresses` of what describes them, in the same order."""

    weights: tuple[list[LinearWeight], ...]
    addresses: tuple[Any, ...]

    @property
    def count(self) -> int:
        return len(self.weights[0])

    @property
    def inner(self) -> int:
        return self.weights[0][0].outputs


@functools.cache
def _function() -> Any:
    found = declare(galley_experts=(P, P, P, N, P, P, P, N, N, N, N, F, P, N))
    return None if found is None else found[0]


def pack(w1: torch.Tensor, w3: torch.Tensor, w2: torch.Tensor, weight_format: str) -> PackedExperts | None:
    """From float32 stacks [E, I, D], [E, I, D], [E, D, I]; None without native kernels."""
    if _function() is None:
        return None
    weights = tuple(
        [LinearWeight.prepare(matrix, weight_format, batch_invariant=False) for matrix in stack]
        for stack in (w1, w3, w2)
    )
    addresses = []
    for matrices in weights:
        packed = [matrix.packed.address for matrix in matrices if matrix.packed is not None]
        assert len(packed) == len(matrices), "the library that packs is the one that multiplies"
        addresses.append((ctypes.c_void_p * len(packed))(*packed))
    return PackedExperts(weights, tuple(addresses))


def mix_experts(
    x: torch.Tensor, experts: torch.Tensor, weights: torch.Tensor, packed: PackedExperts, limit: float
) -> torch.Tensor:
    """x and weights float32, experts int64, all within the packed ones."""
    x, experts, weights = x.contiguous(), experts.contiguous(), weights.contiguous()
    if x.dtype != torch.float32 or weights.dtype != torch.float32:
        raise TypeError(f"rows and weights are float32, not {x.dtype} and {weights.dtype}")
    rows, channels = x.shape
    out = torch.empty_like(x)
    _function()(
        *packed.addresses, packed.count, x.data_ptr(), experts.data_ptr(), weights.data_ptr(), rows, experts.shape[1],
        channels, packed.inner, limit, out.data_ptr(), torch.get_num_threads(),
    )  # fmt: skip
    return out
