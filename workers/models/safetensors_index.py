"""What a safetensors checkpoint holds, read from its headers alone (no torch, no payload).

A safetensors file is eight bytes (little-endian length of the header), a JSON header that gives every
tensor's dtype, shape and byte range, and the payload. A folder holds either one such file or several shards
with a `model.safetensors.index.json` that maps tensor names to shards.

Reading tensors is the job of `workers.models.safetensors_stream`.
"""

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

INDEX_NAME = "model.safetensors.index.json"
SINGLE_NAME = "model.safetensors"

# A header of the official 48-shard checkpoint takes about 300 KB; the limit only guards against reading a
# file that isn't safetensors as one enormous header.
MAX_HEADER_BYTES = 100 * 2**20

DTYPE_BITS: Mapping[str, int] = {
    "F64": 64,
    "F32": 32,
    "F16": 16,
    "BF16": 16,
    "F8_E4M3": 8,
    "F8_E5M2": 8,
    "F8_E8M0": 8,
    "I64": 64,
    "I32": 32,
    "I16": 16,
    "I8": 8,
    "U64": 64,
    "U32": 32,
    "U16": 16,
    "U8": 8,
    "BOOL": 8,
    "F4": 4,
}


class CheckpointError(ValueError):
    """A checkpoint that cannot be used. The message names the file or the tensor, and what is wrong with
    it.
    """


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """One tensor as its header declares it. `begin` and `end` are absolute byte offsets in `file`."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    file: Path
    begin: int
    end: int

    @property
    def nbytes(self) -> int:
        return self.end - self.begin

    @property
    def elements(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class ShortFile:
    """A shard whose payload ends before the last tensor does: a partial download, or headers without
    payloads.
    """

    file: Path
    missing_bytes: int


@dataclass(slots=True)
class CheckpointIndex:
    """The tensors of a checkpoint by name, in file order: shard by shard, by ascending offset.

    `unlisted` names what a shard holds though the index file assigns it elsewhere or nowhere, `absent` what
    the index file lists but no shard holds.
    """

    folder: Path
    tensors: dict[str, TensorEntry]
    files: tuple[Path, ...]
    metadata: dict[str, str] = field(default_factory=dict)
    unlisted: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()

    def __contains__(self, name: str) -> bool:
        return name in self.tensors

    def __getitem__(self, name: str) -> TensorEntry:
        try:
            return self.tensors[name]
        except KeyError:
            raise CheckpointError(f"{self.folder}: tensor {name} is missing") from None

    def __iter__(self) -> Iterator[TensorEntry]:
        return iter(self.tensors.values())

    def __len__(self) -> int:
        return len(self.tensors)

    @property
    def nbytes(self) -> int:
        return sum(entry.nbytes for entry in self)

    @property
    def elements(self) -> int:
        return sum(entry.elements for entry in self)

    def short_files(self) -> tuple[ShortFile, ...]:
        """Shards with less payload than their header declares."""
        wanted: dict[Path, int] = {}
        for entry in self:
            wanted[entry.file] = max(wanted.get(entry.file, 0), entry.end)
        sizes = {file: file.stat().st_size for file in wanted}
        return tuple(ShortFile(file, end - sizes[file]) for file, end in wanted.items() if sizes[file] < end)

    def require_payloads(self) -> None:
        """Raise `CheckpointError` when a shard is shorter than its header says."""
        for short in self.short_files():
            raise CheckpointError(
                f"{short.file}: {short.missing_bytes:,} bytes of tensor data are missing; copy the file again"
            )


def read_header(file: Path) -> tuple[list[TensorEntry], dict[str, str]]:
    """The tensors (by ascending offset) and the metadata that a safetensors file's header declares.

    Raises `CheckpointError` when the file is not safetensors or its header contradicts itself.
    """
    try:
        with file.open("rb") as stream:
            prefix = stream.read(8)
            length = int.from_bytes(prefix, "little")
            if len(prefix) < 8 or not 2 <= length <= MAX_HEADER_BYTES:
                raise CheckpointError(f"{file}: not a safetensors file (no header length)")
            raw = stream.read(length)
    except OSError as error:
        raise CheckpointError(f"{file}: cannot be read: {error.strerror}") from error
    if len(raw) < length:
        raise CheckpointError(f"{file}: ends inside its header; copy the file again")
    try:
        header = json.loads(raw)
        if not isinstance(header, dict):
            raise TypeError("not an object")
        metadata = {str(k): str(v) for k, v in (header.pop("__metadata__", None) or {}).items()}
        entries = [_entry(file, 8 + length, name, value) for name, value in header.items()]
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(f"{file}: the header is damaged ({error})") from error
    entries.sort(key=lambda entry: (entry.begin, entry.end))
    position = 8 + length
    for entry in entries:
        if entry.begin != position:
            raise CheckpointError(f"{file}: tensor {entry.name} starts at byte {entry.begin}, expected {position}")
        position = entry.end
    return entries, metadata


def _entry(file: Path, base: int, name: str, value: dict[str, object]) -> TensorEntry:
    dtype = value["dtype"]
    shape = value["shape"]
    offsets = value["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPE_BITS:
        raise CheckpointError(f"{file}: tensor {name} has the unknown dtype {dtype!r}")
    if not isinstance(shape, list) or not all(isinstance(n, int) and n >= 0 for n in shape):
        raise CheckpointError(f"{file}: tensor {name} has the shape {shape!r}")
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(isinstance(n, int) for n in offsets):
        raise CheckpointError(f"{file}: tensor {name} has the byte range {offsets!r}")
    begin, end = offsets
    if (end - begin) * 8 != math.prod(shape) * DTYPE_BITS[dtype]:
        raise CheckpointError(
            f"{file}: tensor {name} of shape {shape} and dtype {dtype} cannot fill {end - begin} bytes"
        )
    return TensorEntry(name, dtype, tuple(shape), file, base + begin, base + end)


def read_index(folder: Path) -> CheckpointIndex:
    """Read every header of a checkpoint folder (or of one `.safetensors` file).

    The index file, where there is one, is held against what the shards really contain; the differences are
    in `absent` and `unlisted`, for the caller to refuse or to show. Without it every `*.safetensors` file
    of the folder is a shard. Raises `CheckpointError` when there is none, a listed shard is missing, or two
    shards hold one name.
    """
    if folder.is_file():
        entries, own = read_header(folder)
        return CheckpointIndex(folder.parent, {e.name: e for e in entries}, (folder,), own)
    if not folder.is_dir():
        raise CheckpointError(f"{folder}: no such folder")
    listed = _read_weight_map(folder / INDEX_NAME)
    if listed is not None:
        files = tuple(folder / name for name in sorted(set(listed.values())))
    elif (folder / SINGLE_NAME).exists():
        files = (folder / SINGLE_NAME,)
    else:
        files = tuple(sorted(folder.glob("*.safetensors")))
    if not files:
        raise CheckpointError(f"{folder}: holds no .safetensors file")
    tensors: dict[str, TensorEntry] = {}
    metadata: dict[str, str] = {}
    for file in files:
        if not file.is_file():
            raise CheckpointError(f"{folder}: shard {file.name} is missing, though {INDEX_NAME} lists it")
        entries, file_metadata = read_header(file)
        metadata.update(file_metadata)
        for entry in entries:
            if entry.name in tensors:
                other = tensors[entry.name].file.name
                raise CheckpointError(f"{folder}: tensor {entry.name} is in both {other} and {file.name}")
            tensors[entry.name] = entry
    index = CheckpointIndex(folder, tensors, files, metadata)
    if listed is not None:
        index.absent = tuple(name for name in listed if name not in tensors)
        index.unlisted = tuple(name for name, e in tensors.items() if listed.get(name) != e.file.name)
    return index


def _read_weight_map(file: Path) -> dict[str, str] | None:
    if not file.exists():
        return None
    try:
        weight_map = json.loads(file.read_bytes())["weight_map"]
        pairs = {str(name): str(shard) for name, shard in weight_map.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{file}: not an index file with a weight_map ({error})") from error
    for name, shard in pairs.items():
        if Path(shard).name != shard:
            raise CheckpointError(f"{file}: tensor {name} points at {shard!r}, outside the folder")
    return pairs
