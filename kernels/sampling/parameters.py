"""Sampling parameters of many rows, as tensors."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class SamplingParameters:
    """One entry per row. `top_k` 0, `top_p` 1 and `min_p` 0 switch a filter off.

    `uniforms` float64 in [0, 1) is each row's draw, from `kernels.sampling.uniform`.
    """

    temperature: torch.Tensor
    top_k: torch.Tensor
    top_p: torch.Tensor
    min_p: torch.Tensor
    uniforms: torch.Tensor

    def rows(self, index: torch.Tensor) -> SamplingParameters:
        return SamplingParameters(
            self.temperature[index], self.top_k[index], self.top_p[index], self.min_p[index], self.uniforms[index]
        )

    @property
    def filtered(self) -> torch.Tensor:
        """bool [m]: rows with any filter on."""
        return (self.top_k > 0) | (self.top_p < 1) | (self.min_p > 0)
