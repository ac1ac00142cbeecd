"""Loaded weights by name, handed out once each to the modules that use them, in the form they are multiplied in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

from kernels.linear import LinearWeight, linear
from kernels.moe import PackedExperts, pack
from kernels.quantization import Weight


class Matrix(Protocol):
    def linear(self, x: torch.Tensor) -> torch.Tensor:
        """`x W^T` for x [T, c], in x's dtype."""


class GroupedMatrix(Protocol):
    def linear(self, x: torch.Tensor) -> torch.Tensor:
        """x [T, groups, c], a matrix [r, c] for each group -> [T, groups * r]."""


@dataclass(frozen=True, slots=True)
class Runtime:
    """How a served model multiplies: float32 rows, weights in a format of `kernels.linear`."""

    weight_format: str
    batch_invariant: bool

    def prepare(self, values: torch.Tensor, weight_format: str | None = None) -> LinearWeight:
        return LinearWeight.prepare(
            values.float(), weight_format or self.weight_format, batch_invariant=self.batch_invariant
        )


@dataclass(frozen=True, slots=True)
class _Served:
    weight: LinearWeight

    def linear(self, x: torch.Tensor) -> torch.Tensor:
        return linear(x, self.weight)


@dataclass(frozen=True, slots=True)
class _ServedGroups:
    weights: list[LinearWeight]

    def linear(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([linear(x[:, g], weight) for g, weight in enumerate(self.weights)], dim=1)


@dataclass(frozen=True, slots=True)
class _Groups:
    weight: Weight
    groups: int

    def linear(self, x: torch.Tensor) -> torch.Tensor:
        matrices = self.weight.dense(x.dtype).unflatten(0, (self.groups, -1))
        return torch.bmm(x.transpose(0, 1), matrices.transpose(1, 2)).transpose(0, 1).flatten(1)


class WeightShelf:
    """Weights by checkpoint name (`.weight` dropped); experts are stacked as `...experts.w1`, `.w3`, `.w2`.

    Without a `runtime`, matrices are multiplied as they lie in memory, in the rows' dtype.
    """

    def __init__(self, weights: dict[str, Weight], runtime: Runtime | None = None) -> None:
        self._weights = weights
        self.runtime = runtime

    def weight(self, name: str) -> Weight:
        """Take a weight as it is. Raises `KeyError` naming it when it is not there (or was taken before)."""
        return self._weights.pop(name)

    def vector(self, name: str) -> torch.Tensor:
        """Take a small float tensor."""
        return self.weight(name).data

    def matrix(self, name: str, *, exact: bool = False) -> Matrix:
        """Take a matrix to multiply with; `exact`: in float32 whatever the format of the others."""
        weight = self.weight(name)
        if self.runtime is None:
            return weight
        return _Served(self.runtime.prepare(weight.dense(torch.float32), "fp32" if exact else None))

    def grouped(self, name: str, groups: int) -> GroupedMatrix:
        """Take a matrix [groups * r, c] that multiplies each group's channels with its own rows."""
        weight = self.weight(name)
        if self.runtime is None:
            return _Groups(weight, groups)
        parts = weight.dense(torch.float32).unflatten(0, (groups, -1))
        return _ServedGroups([self.runtime.prepare(part) for part in parts])

    def experts(self, name: str) -> Weight:
        """Take a stack of matrices as it is."""
        return self.weight(name)

    def pack_experts(self, w1: Weight, w3: Weight, w2: Weight) -> PackedExperts | None:
        """The stacks in the runtime's format; None without a runtime, or without native kernels (then in float)."""
        if self.runtime is None:
            return None
        dense = [stack.dense(torch.float32) for stack in (w1, w3, w2)]
        return pack(dense[0], dense[1], dense[2], self.runtime.weight_format)

    def __contains__(self, name: str) -> bool:
        return name in self._weights

    def left(self) -> list[str]:
        """Names that no module has taken."""
        return list(self._weights)
