"""Read tensors of a safetensors checkpoint one at a time, straight into their own memory.

Nothing is mapped and nothing is read twice: a tensor costs its own bytes and no more, so a loader that
converts as it goes never holds two copies of the checkpoint. Names and headers come from
`workers.models.safetensors_index`.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from types import TracebackType
from typing import Self

import torch

from workers.models.safetensors_index import CheckpointError, TensorEntry

# ue8m0 scales are exponents stored as bytes. They are handed out as uint8: a numeric conversion of the
# float8 dtype would turn byte 127 into 1.0 and lose what the codecs need.
TORCH_DTYPES: dict[str, torch.dtype] = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E8M0": torch.uint8,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}


@dataclass(frozen=True, slots=True)
class LoadProgress:
    """How far a load has come. Bytes are those of the checkpoint, not of what was made of them."""

    tensor: str
    tensors_done: int
    tensors_total: int
    bytes_done: int
    bytes_total: int


class SafetensorsStream:
    """An open set of shards to read tensors from. Use as a context manager; at most one file stays open."""

    def __init__(self) -> None:
        self._path: Path | None = None
        self._file: FileIO | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
        self._file, self._path = None, None

    def read(self, entry: TensorEntry) -> torch.Tensor:
        """The whole tensor, in its stored dtype (ue8m0 as uint8), contiguous, on the CPU."""
        return self.read_rows(entry, 0, entry.shape[0]) if entry.shape else self._fill(entry, 0, entry.shape)

    def read_rows(self, entry: TensorEntry, first: int, last: int) -> torch.Tensor:
        """Rows [first, last) of the first axis: a part of a tensor too large, or split over ranks."""
        rows = entry.shape[0]
        if not 0 <= first <= last <= rows:
            raise ValueError(f"rows [{first}, {last}) of {entry.name}, which has {rows}")
        row_bytes = entry.nbytes // rows if rows else 0
        return self._fill(entry, first * row_bytes, (last - first, *entry.shape[1:]))

    def _fill(self, entry: TensorEntry, skip: int, shape: tuple[int, ...]) -> torch.Tensor:
        dtype = TORCH_DTYPES.get(entry.dtype)
        if dtype is None:
            raise CheckpointError(f"{entry.file}: tensor {entry.name} has dtype {entry.dtype}, which torch cannot hold")
        tensor = torch.empty(shape, dtype=dtype)
        if tensor.numel() == 0:
            return tensor
        target = tensor.reshape(-1).view(torch.uint8).numpy().data.cast("B")
        file = self._open(entry.file)
        file.seek(entry.begin + skip)
        done = 0
        while done < len(target):
            count = file.readinto(target[done:])
            if not count:
                raise CheckpointError(f"{entry.file}: ends inside tensor {entry.name}; copy the file again")
            done += count
        return tensor

    def _open(self, path: Path) -> FileIO:
        if self._path != path or self._file is None:
            self.close()
            # Unbuffered: readinto goes straight into the tensor's memory.
            self._file = FileIO(path)
            self._path = path
        assert self._file is not None
        return self._file


def stream_tensors(
    entries: Iterable[TensorEntry], progress: Callable[[LoadProgress], None] | None = None
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield (name, tensor) in file order. `progress` is called after each tensor has been taken and
    processed.
    """
    order = sorted(entries, key=lambda entry: (str(entry.file), entry.begin))
    total = sum(entry.nbytes for entry in order)
    done = 0
    with SafetensorsStream() as stream:
        for count, entry in enumerate(order, 1):
            yield entry.name, stream.read(entry)
            done += entry.nbytes
            if progress is not None:
                progress(LoadProgress(entry.name, count, len(order), done, total))
