"""Loaded weights by name, handed out once each to the modules that use them."""

import torch

from kernels.quantization import Weight


class WeightShelf:
    """Weights by checkpoint name (`.weight` dropped); experts are stacked as `...experts.w1`, `.w3`, `.w2`."""

    def __init__(self, weights: dict[str, Weight]) -> None:
        self._weights = weights

    def weight(self, name: str) -> Weight:
        """Take a matrix. Raises `KeyError` naming it when it is not there (or was taken before)."""
        return self._weights.pop(name)

    def vector(self, name: str) -> torch.Tensor:
        """Take a small float tensor."""
        return self.weight(name).data

    def __contains__(self, name: str) -> bool:
        return name in self._weights

    def left(self) -> list[str]:
        """Names that no module has taken."""
        return list(self._weights)
