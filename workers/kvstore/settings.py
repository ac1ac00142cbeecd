"""What a process must know to open the store (it travels in worker specifications, so it is data)."""

from __future__ import annotations

import msgspec

from workers.kvstore.files import Fsync

MIB = 1 << 20
DEFAULT_NAMESPACE = "galley:{kv}"


class StoreSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    root: str
    """Folder of the extents: a local disk or a mount shared by every host."""
    index_url: str
    namespace: str = DEFAULT_NAMESPACE
    create: bool = True
    """Make a store of an empty folder. Switch off for shared mounts, whose empty mount point must not become one."""
    fsync: Fsync = Fsync.NEVER
    readers: int = 4
    read_queue: int = 1024
    """Reads (of up to 64 blocks) that may wait; beyond that the store misses."""
    read_deadline_s: float = 2.0
    buffer_bytes: int = 256 * MIB
    """Read buffers kept for reuse."""
    header_cache_blocks: int = 200_000
    sidecar_cache_bytes: int = 256 * MIB
    """Sidecars that an engine keeps in memory, for hits in its own pool."""
    write_queue_bytes: int = 512 * MIB
    write_queue: int = 4096
    write_deadline_s: float = 30.0
    extent_bytes: int = 64 * MIB
    index_timeout_s: float = 0.5
    most_blocks: int = 50_000_000
    """Bound on indexed blocks (about 120 bytes of Valkey each)."""
    ghosts: int = 100_000
    """Ghost entries kept per class."""
    most_bytes: int | None = None
    """The store holds no more than this, whatever the policy's total says; None: the policy and the disk decide."""
    reserve_bytes: int = 1024 * MIB
    """The sweeper keeps this much of the disk free."""
    sweep_interval_s: float = 15.0
    background: bool = True
    """Run maintenance (probes, sweeps, rebuilds) in this process; the lock lets one process at a time sweep."""
