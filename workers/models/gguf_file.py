"""A GGUF file as the `gguf` package reads it: metadata by key, tensors by name, dequantised one at a time."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np


class GGUFError(ValueError):
    """The file is not GGUF, is damaged, or lacks what we need; the message names it."""


class GGUFFile:
    """Tensors are named as GGUF names them (`blk.0.attn_q.weight`); shapes are in torch's order, rows first."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._reader = gguf.GGUFReader(path)
        except (ValueError, IndexError, OSError) as error:
            raise GGUFError(f"{path.name} is not a readable GGUF file ({error})") from error
        self._tensors = {tensor.name: tensor for tensor in self._reader.tensors}

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def __len__(self) -> int:
        return len(self._tensors)

    def get(self, key: str, default: Any = None) -> Any:
        """A metadata value as plain Python, or `default`."""
        field = self._reader.get_field(key)
        return default if field is None else field.contents()

    def require(self, key: str) -> Any:
        value = self.get(key)
        if value is None:
            raise GGUFError(f"{self.path.name}: the metadata lacks {key}")
        return value

    def stored(self, name: str) -> gguf.ReaderTensor:
        """The tensor as it lies in the file. Raises GGUFError for one that is missing."""
        try:
            return self._tensors[name]
        except KeyError:
            raise GGUFError(f"{self.path.name}: tensor {name} is missing") from None

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(int(n) for n in reversed(self.stored(name).shape))

    def tensor(self, name: str) -> np.ndarray:
        """The tensor in float32, dequantised, a copy of its own."""
        stored = self.stored(name)
        values = gguf.quants.dequantize(stored.data, stored.tensor_type).astype(np.float32)
        return np.array(values.reshape(self.shape(name)), order="C")

    @property
    def parameters(self) -> int:
        return sum(int(tensor.n_elements) for tensor in self._tensors.values())

    def weights_fingerprint(self, config: dict[str, Any]) -> str:
        """SHA-256 over the configuration and every tensor's name, format, shape and stored bytes, in name order."""
        digest = hashlib.sha256(json.dumps(config, sort_keys=True).encode())
        for name in sorted(self._tensors):
            stored = self.stored(name)
            digest.update(f"\0{name}\0{stored.tensor_type.name}\0{self.shape(name)}\0".encode())
            digest.update(stored.data.tobytes())
        return digest.hexdigest()
