"""Quick loading of GGUF weights: an index written once at `models add`, tensors read by offset, dequantised by torch.

The `gguf` package reads a file's metadata in seconds (a hundred thousand strings of vocabulary, one by one) and
dequantises in numpy; a worker that restarts has no such seconds. It stays the one that parses the file, at `models
add`, and the oracle of the two formats decoded here; any other format is left to it.
"""

from __future__ import annotations

from pathlib import Path

import gguf
import msgspec
import numpy as np
import torch

from workers.models.gguf_file import GGUFError, GGUFFile
from workers.models.llama.config import LlamaConfig

INDEX_NAME = "gguf-index.json"
_GROUP = 32


class GGUFTensor(msgspec.Struct, frozen=True, kw_only=True):
    """`shape` is in torch's order; `offset` and `nbytes` are of the stored form."""

    format: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int


class GGUFIndex(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    config: LlamaConfig
    tensors: dict[str, GGUFTensor]


def build_index(file: GGUFFile, config: LlamaConfig) -> GGUFIndex:
    return GGUFIndex(
        config=config,
        tensors={
            name: GGUFTensor(
                format=file.stored(name).tensor_type.name,
                shape=file.shape(name),
                offset=int(file.stored(name).data_offset),
                nbytes=int(file.stored(name).n_bytes),
            )
            for name in file
        },
    )


def write_index(folder: Path, index: GGUFIndex) -> None:
    (folder / INDEX_NAME).write_bytes(msgspec.json.encode(index))


def read_index(folder: Path) -> GGUFIndex:
    """Raises GGUFError."""
    try:
        return msgspec.json.decode((folder / INDEX_NAME).read_bytes(), type=GGUFIndex)
    except (OSError, msgspec.DecodeError) as error:
        raise GGUFError(f"{folder / INDEX_NAME} cannot be read ({error}); remove the model and add it again") from error


class GGUFWeights:
    """Tensors of a store folder in float32. The file is mapped, so that pages are shared between workers."""

    def __init__(self, folder: Path, weights: str) -> None:
        self.index = read_index(folder)
        self._bytes = np.memmap(folder / weights, dtype=np.uint8, mode="c")

    def tensor(self, name: str) -> torch.Tensor:
        """Raises GGUFError for one that is missing or cut off."""
        entry = self.index.tensors.get(name)
        if entry is None:
            raise GGUFError(f"tensor {name} is missing")
        stored = self._bytes[entry.offset : entry.offset + entry.nbytes]
        if len(stored) < entry.nbytes:
            raise GGUFError(f"the weights end inside tensor {name}; remove the model and add it again")
        return dequantise(stored, entry.format).view(entry.shape)


def dequantise(stored: np.ndarray, kind: str) -> torch.Tensor:
    """Stored bytes of a whole tensor to float32 [elements], equal to the bit to what the `gguf` package gives."""
    if kind == "Q4_1":  # per 32 values: scale d and minimum m (float16), then nibbles, low ones first: d*q + m
        groups = torch.from_numpy(stored.reshape(-1, 4 + _GROUP // 2))
        scales = groups[:, :4].contiguous().view(torch.float16).float()
        packed = groups[:, 4:]
        codes = torch.cat((packed & 15, packed >> 4), dim=1).float()
        return codes.mul_(scales[:, :1]).add_(scales[:, 1:]).view(-1)
    if kind == "Q8_0":  # per 32 values: scale d (float16), then int8: d*q
        groups = torch.from_numpy(stored.reshape(-1, 2 + _GROUP))
        scales = groups[:, :2].contiguous().view(torch.float16).float()
        return groups[:, 2:].view(torch.int8).float().mul_(scales).view(-1)
    if kind == "F32":
        return torch.from_numpy(np.array(stored)).view(torch.float32)
    values = gguf.quants.dequantize(stored, gguf.GGMLQuantizationType[kind])
    return torch.from_numpy(np.ascontiguousarray(values, dtype=np.float32)).view(-1)
