"""The store's root: one folder on any POSIX file system, local or shared by many hosts.

    store.json          whose root this is (an empty mount point is told from the store)
    policy.json         last policy seen, for a start without Valkey
    extents/<3 hex>/<32 hex>.kvx
    tmp/<32 hex>.<host>.<pid>

Extents appear by rename and never change. Everything is readable by the service's user only.
"""

from __future__ import annotations

import contextlib
import enum
import errno
import os
import secrets
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec

from workers.kvstore.extent import PREAMBLE, ExtentError, ExtentId, Layout, decode_header, header_bytes

TEMPORARY_LIFE_S: Final = 15 * 60.0
"""A temporary file that old belongs to nobody: a write takes seconds."""
_MARKER: Final = "store.json"
_FIRST_READ: Final = 16 * 1024
_IOV: Final = 512


class Fsync(enum.StrEnum):
    """What a write waits for. A lost or torn extent is a miss (checksums), so the default waits for nothing."""

    NEVER = "never"
    DATA = "data"
    FULL = "full"


class RootMissing(Exception):
    """The folder is not there, or is not a store's (such as the empty mount point of a share that is away)."""


class RootForeign(Exception):
    """The folder belongs to another store than the index."""


class Marker(msgspec.Struct, frozen=True):
    store_id: str
    format: int = 1


class Root:
    """Files by extent id. Methods raise OSError, ExtentError, RootMissing or RootForeign; they keep no open files."""

    def __init__(self, path: Path, *, fsync: Fsync = Fsync.NEVER, now: Callable[[], float] = time.time) -> None:
        self.path = path
        self.extents = path / "extents"
        self.temporary = path / "tmp"
        self._fsync = fsync
        self._now = now
        self._owner = f"{socket.gethostname()}.{os.getpid()}"

    # -- whose root --------------------------------------------------------------------------------------------------

    def store_id(self) -> str:
        """Raises RootMissing when there is no store here."""
        try:
            return msgspec.json.decode((self.path / _MARKER).read_bytes(), type=Marker).store_id
        except (FileNotFoundError, NotADirectoryError) as error:
            raise RootMissing(f"{self.path} holds no store: is the file system mounted?") from error
        except msgspec.MsgspecError as error:
            raise RootMissing(f"{self.path}/{_MARKER} is damaged: {error}") from error

    def create(self) -> str:
        """Make a new store of an empty or missing folder, or return the id of the one that is there."""
        self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
        for folder in (self.extents, self.temporary):
            folder.mkdir(exist_ok=True, mode=0o700)
        if not (self.path / _MARKER).exists():
            self.write_small(_MARKER, msgspec.json.encode(Marker(secrets.token_hex(16))), replace=False)
        return self.store_id()

    def check(self, store_id: str) -> None:
        """Raise unless the mounted folder is the store `store_id`."""
        found = self.store_id()
        if found != store_id:
            raise RootForeign(f"{self.path} is store {found}, the index knows {store_id}")

    def write_small(self, name: str, data: bytes, *, replace: bool) -> None:
        """Write a small file under the root, whole or not at all; without `replace` the first writer wins."""
        temporary = self.temporary / f"{secrets.token_hex(16)}.{self._owner}"
        try:
            with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            if replace:
                os.replace(temporary, self.path / name)
            else:
                with contextlib.suppress(FileExistsError):
                    os.link(temporary, self.path / name)
        finally:
            temporary.unlink(missing_ok=True)

    def read_small(self, name: str) -> bytes | None:
        try:
            return (self.path / name).read_bytes()
        except FileNotFoundError:
            return None

    def free_bytes(self) -> int:
        """Bytes that the service's user may still write."""
        state = os.statvfs(self.path)
        return state.f_bavail * state.f_frsize

    def disk_bytes(self) -> int:
        state = os.statvfs(self.path)
        return state.f_blocks * state.f_frsize

    # -- extents -----------------------------------------------------------------------------------------------------

    def where(self, extent: ExtentId) -> Path:
        name = extent.hex()
        return self.extents / name[:3] / f"{name}.kvx"

    def write(self, extent: ExtentId, header: bytes, blocks: Sequence[bytes | bytearray | memoryview]) -> int:
        """Write an extent and make it appear. Returns its bytes; on an error nothing stays behind."""
        temporary = self.temporary / f"{extent.hex()}.{self._owner}"
        final = self.where(extent)
        try:
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                size = _write_all(descriptor, [memoryview(header), *(memoryview(b).cast("B") for b in blocks)])
                now = self._now()
                os.utime(descriptor, (now, now))
                if self._fsync is not Fsync.NEVER:
                    os.fdatasync(descriptor)
            finally:
                os.close(descriptor)
            try:
                os.rename(temporary, final)
            except FileNotFoundError:
                final.parent.mkdir(mode=0o700, exist_ok=True)
                os.rename(temporary, final)
            if self._fsync is Fsync.FULL:
                self._sync_folder(final.parent)
            return size
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise

    def _sync_folder(self, folder: Path) -> None:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def open(self, extent: ExtentId) -> int:
        """A descriptor for reading; the caller closes it."""
        return os.open(self.where(extent), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)

    def read_header(self, extent: ExtentId, descriptor: int) -> Layout:
        """Header of an open extent, checked against its name and the file's length. Raises ExtentError."""
        layout = _read_layout(descriptor)
        if layout.header.extent_id != extent:
            raise ExtentError("identity", "the file's name is not the extent's")
        return layout

    def remove(self, extent: ExtentId) -> None:
        self.where(extent).unlink(missing_ok=True)

    def renew(self, extent: ExtentId) -> None:
        """Set the file's time to now: what a rebuilt index takes for its last use."""
        now = self._now()
        with contextlib.suppress(FileNotFoundError):
            os.utime(self.where(extent), (now, now))

    def walk(self) -> Iterator[tuple[ExtentId, float]]:
        """Every extent file and its time, in no particular order; names that are no extents are passed over."""
        for folder in _entries(self.extents):
            for entry in _entries(Path(folder.path)) if folder.is_dir(follow_symlinks=False) else ():
                stem, _, suffix = entry.name.partition(".")
                try:
                    extent = ExtentId(bytes.fromhex(stem))
                    if suffix == "kvx" and len(extent) == 16:
                        yield extent, entry.stat(follow_symlinks=False).st_mtime
                except (ValueError, FileNotFoundError):
                    continue  # not ours, or removed while we walked

    def clean_temporary(self, older_than_s: float = TEMPORARY_LIFE_S) -> int:
        """Remove temporary files that no writer can still be writing. Returns how many.

        Ages are taken against the file system's own clock (a file made now), not this host's.
        """
        reference = self.temporary / f"{secrets.token_hex(16)}.{self._owner}"
        os.close(os.open(reference, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        removed = 0
        try:
            now = reference.stat().st_ctime
            for entry in _entries(self.temporary):
                with contextlib.suppress(FileNotFoundError):
                    age = now - entry.stat(follow_symlinks=False).st_ctime
                    if age > older_than_s and entry.name != reference.name:
                        os.unlink(entry.path)
                        removed += 1
        finally:
            reference.unlink(missing_ok=True)
        return removed


def _entries(folder: Path) -> Iterator[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            yield from entries
    except FileNotFoundError:
        return


def _write_all(descriptor: int, parts: list[memoryview]) -> int:
    """Write every byte; raises OSError (ENOSPC where the file system takes nothing more)."""
    size = sum(len(part) for part in parts)
    index = 0
    while index < len(parts):
        written = os.writev(descriptor, parts[index : index + _IOV])
        if written == 0 and any(len(p) for p in parts[index : index + _IOV]):
            raise OSError(errno.ENOSPC, "the file system takes nothing more")
        while index < len(parts) and written >= len(parts[index]):
            written -= len(parts[index])
            index += 1
        if written:
            parts[index] = parts[index][written:]
    return size


def _read_layout(descriptor: int) -> Layout:
    raw = os.pread(descriptor, _FIRST_READ, 0)
    wanted = PREAMBLE.size + header_bytes(raw)
    if len(raw) < wanted:
        raw += os.pread(descriptor, wanted - len(raw), len(raw))
    layout = decode_header(raw)
    if os.fstat(descriptor).st_size != layout.file_bytes:
        raise ExtentError("truncated", "the file's length is not what its header says")
    return layout


def read_into(descriptor: int, target: memoryview, position: int) -> None:
    """Fill `target` from the file's byte `position` on. Raises ExtentError when the file ends before."""
    done = 0
    while done < len(target):
        count = os.preadv(descriptor, [target[done:]], position + done)
        if count == 0:
            raise ExtentError("truncated", "the file ends inside a block")
        done += count
