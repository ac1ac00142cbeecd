"""The model store: one folder per model under `$GALLEY_HOME/models`, complete or absent.

A model is put together in a hidden folder and renamed into place, under a lock that one process at a time holds; what
an interrupted attempt left behind goes at the next one. Importing this module does not import torch.
"""

from __future__ import annotations

import errno
import fcntl
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kernels import NUMERICS_REVISION
from workers.identity import CacheIdentity
from workers.manifest import MANIFEST_NAME, ManifestError, ModelManifest, read_manifest
from workers.spec import PrefillTrim, WeightFormat

if TYPE_CHECKING:
    from workers.models.base import CausalModel, PagedGroup, Plane, WindowGroup

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_HIDDEN = ".work-"
_SPARE_BYTES = 64 * 2**20

Progress = Callable[[str, int, int], None]
"""(what, done, total) in bytes; total 0 where it is not known yet."""


class StoreError(Exception):
    """A model could not be added, read or removed; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class StoredModel:
    name: str
    manifest: ModelManifest | None
    problem: str
    """Why the folder is unusable; empty where `manifest` is there."""
    bytes_on_disk: int


class ModelStore:
    """The models under one folder. Names are lower-case letters, digits, `.`, `_` and `-`."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def folder(self, name: str) -> Path:
        """Where `name` lies or would lie. Raises StoreError for a name that is not one."""
        if not _NAME.fullmatch(name):
            raise StoreError(f"{name!r} is no model name: use a-z, 0-9, '.', '_' and '-', at most 64, e.g. my-llama-1b")
        return self.root / name

    def __contains__(self, name: str) -> bool:
        return (self.folder(name) / MANIFEST_NAME).is_file()

    def list(self) -> list[StoredModel]:
        """Every model in name order, unusable folders included."""
        if not self.root.is_dir():
            return []
        return [self._describe(path) for path in sorted(self.root.iterdir()) if path.is_dir() and path.name[0] != "."]

    def _describe(self, folder: Path) -> StoredModel:
        size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
        try:
            return StoredModel(folder.name, read_manifest(folder), "", size)
        except ManifestError as error:
            return StoredModel(folder.name, None, str(error), size)

    @contextmanager
    def adding(self, name: str, *, needs_bytes: int) -> Iterator[Path]:
        """An empty folder that becomes the model `name` when the block ends without an error.

        Raises StoreError where the model exists, another process is changing the store, or the disk has not
        `needs_bytes` (a little more is kept spare); a full disk inside the block is reported the same way.
        """
        target = self.folder(name)
        with self._locked():
            if target.exists():
                raise StoreError(f"{name} is already in the store; `manage.py models remove {name}` removes it")
            free = shutil.disk_usage(self.root).free
            if free < needs_bytes + _SPARE_BYTES:
                raise StoreError(
                    f"no room for {name} in {self.root}: {_mb(needs_bytes + _SPARE_BYTES)} needed, {_mb(free)} free"
                )
            work = self.root / f"{_HIDDEN}{name}"
            work.mkdir()
            try:
                yield work
                if not (work / MANIFEST_NAME).is_file():
                    raise AssertionError("a model was put together without a manifest")
                work.rename(target)
            except OSError as error:
                if error.errno in (errno.ENOSPC, errno.EDQUOT):
                    raise StoreError(f"the disk of {self.root} filled up while {name} was added") from error
                raise
            finally:
                shutil.rmtree(work, ignore_errors=True)

    def remove(self, name: str) -> None:
        """Raises StoreError for a model that is not there."""
        target = self.folder(name)
        with self._locked():
            if not target.is_dir():
                raise StoreError(f"{name} is not in the model store; `manage.py models list` shows what is")
            work = self.root / f"{_HIDDEN}{name}"
            target.rename(work)  # gone at once for everybody else, however long deleting takes
            shutil.rmtree(work)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        self.root.mkdir(parents=True, exist_ok=True, mode=0o700)
        with (self.root / ".lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise StoreError("another process is adding or removing a model; try again when it is done") from None
            for leftover in self.root.glob(f"{_HIDDEN}*"):
                shutil.rmtree(leftover, ignore_errors=True)
            yield


def load_model(
    folder: Path,
    *,
    weight_format: WeightFormat = WeightFormat.FP32,
    batch_invariant: bool = False,
    prefill_trim: PrefillTrim = PrefillTrim.COMPACT,
    progress: Progress | None = None,
) -> CausalModel:
    """The model in a store folder, ready for the engine. Raises ManifestError or StoreError."""
    from kernels.linear import FORMATS

    manifest = read_manifest(folder)
    if weight_format not in FORMATS:
        known = ", ".join(FORMATS)
        raise StoreError(f"{manifest.name}: weights in {weight_format} cannot be run here; known are {known}")
    from workers.models.gguf_file import GGUFError
    from workers.models.llama.config import ConfigError
    from workers.models.safetensors_index import CheckpointError

    try:
        match manifest.family:
            case "llama":
                from workers.models.llama.loading import load_llama

                return load_llama(
                    folder, weight_format=weight_format, batch_invariant=batch_invariant, progress=progress
                )
            case "deepseek_v41":
                return _load_v41(folder, weight_format, batch_invariant, prefill_trim, progress)
            case other:
                raise StoreError(f"{manifest.name}: models of family {other!r} cannot be served")
    except (ConfigError, CheckpointError, GGUFError) as error:
        raise StoreError(f"{manifest.name} cannot be loaded: {error}") from error


def _load_v41(
    folder: Path,
    weight_format: WeightFormat,
    batch_invariant: bool,
    prefill_trim: PrefillTrim,
    progress: Progress | None,
) -> CausalModel:
    from workers.models.deepseek_v41.serving import ServingOptions, load_served
    from workers.models.deepseek_v41.trim import Trim
    from workers.models.safetensors_stream import LoadProgress

    options = ServingOptions(
        weight_format=weight_format, batch_invariant=batch_invariant, trim=Trim(prefill_trim.value)
    )

    def report(at: LoadProgress) -> None:
        if progress is not None:
            progress(f"reading {at.tensor}", at.bytes_done, at.bytes_total)

    return load_served(folder, options, report)


def cache_identity(manifest: ModelManifest, model: CausalModel, device: str = "cpu") -> CacheIdentity:
    """What names this model's blocks, beside tenant and tokens. Windows count too: later layers' rows follow from
    what they lost.
    """
    from kernels.native import arithmetic

    spec = model.cache_spec()
    groups: tuple[PagedGroup | WindowGroup, ...] = (*spec.paged, *spec.windows)
    # Native and eager kernels, and vectors of other widths, agree to rounding and not to the bit: enough for `default`,
    # where a row's rounding depends on its company anyway.
    mode = f"batch_invariant-{arithmetic()}" if model.batch_invariant else "default"
    return CacheIdentity(
        weights_fingerprint=manifest.weights_fingerprint,
        tokenizer_fingerprint=manifest.tokenizer_fingerprint,
        weight_format=str(model.weight_format),
        numerics=f"{mode}/{NUMERICS_REVISION}/{device}",
        cache_dtype="+".join(sorted({row_format(plane) for group in groups for plane in group.planes})),
        layout_version=spec.layout_version,
        block_tokens=spec.block_tokens,
    )


def row_format(plane: Plane) -> str:
    """`name:format` of a packed plane, the dtype alone of any other."""
    return f"{plane.name}:{plane.packing}" if plane.packing else str(plane.dtype).removeprefix("torch.")


def _mb(count: int) -> str:
    return f"{count / 2**20:,.0f} MiB"
