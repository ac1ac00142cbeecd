"""The KV store as the control plane reaches it: index and folder of this installation, opened once per process.

Web processes read the index and ask the disk for its room; only the control worker and commands open the whole store.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from concurrent.futures import CancelledError
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

import msgspec

from controlplane import config
from controlplane.caching.errors import StoreUnavailable
from controlplane.config import home, settings
from workers.kvstore.clock import SystemClock
from workers.kvstore.index import Index, IndexUnavailable
from workers.kvstore.pool import BoundedPool, PoolFull
from workers.kvstore.preview import Previewer
from workers.kvstore.settings import StoreSettings
from workers.kvstore.store import Store

DISK_WAIT_S: Final = 2.0
"""A dead mount never answers; a page does not wait for it."""
INDEX_WAIT_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Disk:
    """Bytes of the file system that holds the store."""

    total: int
    free: int


def enabled() -> bool:
    """Whether workers use the store (`GALLEY_KVSTORE=off` says no)."""
    return config.store_settings() is not None


def store_settings() -> StoreSettings:
    """The store of this installation as processes of the control plane open it: without a life of its own.

    Where it is switched off, what it would be: policies are kept and shown all the same.
    """
    wanted = config.store_settings() or StoreSettings(root=str(home().kvstore), index_url=settings().redis_url)
    return msgspec.structs.replace(wanted, index_timeout_s=INDEX_WAIT_S, background=False, readers=1)


@cache
def index() -> Index:
    wanted = store_settings()
    return Index(
        wanted.index_url,
        clock=SystemClock(),
        namespace=wanted.namespace,
        timeout_s=wanted.index_timeout_s,
        most_blocks=wanted.most_blocks,
        ghosts=wanted.ghosts,
    )


@contextmanager
def reachable() -> Iterator[Index]:
    """The index. Raises StoreUnavailable in place of IndexUnavailable."""
    try:
        yield index()
    except IndexUnavailable as error:
        raise StoreUnavailable(f"the store's index in Valkey cannot be reached: {error}") from error


def previewer() -> Previewer:
    return Previewer(index())


@cache
def _disk_threads() -> BoundedPool:
    return BoundedPool("disk", threads=2, bound=8)


def disk() -> Disk | None:
    """Room of the store's file system; None where it does not answer in time or is not there."""
    try:
        asked = _disk_threads().submit(_room, deadline=time.monotonic() + DISK_WAIT_S)
        return asked.result(DISK_WAIT_S)
    except (PoolFull, TimeoutError, CancelledError, OSError):
        return None


def _room() -> Disk:
    path = Path(store_settings().root)
    while not path.exists() and path != path.parent:  # a store that nobody has written to yet
        path = path.parent
    state = os.statvfs(path)
    return Disk(total=state.f_blocks * state.f_frsize, free=state.f_bavail * state.f_frsize)


@contextmanager
def opened(**changes: object) -> Iterator[Store]:
    """The whole store, for a command; closed again. Raises StoreUnavailable where its folder or index is away."""
    with Store(msgspec.structs.replace(store_settings(), **changes)) as store:
        ailments = [one for one in store.status().ailments if one.trouble in _AWAY]
        if ailments:
            raise StoreUnavailable("; ".join(f"{one.trouble}: {one.reason}" for one in ailments))
        yield store


_AWAY: Final = ("index_away", "root_missing", "root_foreign")
