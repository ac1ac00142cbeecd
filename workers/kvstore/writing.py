"""Writing runs behind the request: a queue bounded in bytes and pieces, and one thread that drains it.

Nothing ever waits for a write. What does not fit into the queue, comes too late or cannot be written is dropped
and counted.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final

from workers.identity import BlockHash
from workers.kvstore.clock import micros
from workers.kvstore.extent import (
    HASH_BYTES,
    MAX_BLOCKS,
    PAGED,
    ExtentHeader,
    ExtentId,
    checksum,
    encode_header,
    short_names,
    sidecar_hash,
)
from workers.kvstore.files import Root
from workers.kvstore.health import Health, Trouble
from workers.kvstore.index import Index, IndexUnavailable
from workers.kvstore.policy import sidecar_claim
from workers.kvstore.write import Write

_PAUSE_S: Final = 0.1
ORPHAN_PATIENCE_S: Final = 5.0
"""A run whose parent is not there yet waits so long for it: another worker may be about to write it."""


class _ParentMissing(Exception):
    """The block above the run is not in the store, or not yet."""


class Writer:
    """The queue and its thread. `stored` callbacks and errors are counted in `health`."""

    def __init__(
        self,
        root: Root,
        index: Index,
        health: Health,
        *,
        store_id: Callable[[], str],
        new_id: Callable[[], ExtentId],
        queue_bytes: int,
        queue_items: int,
        extent_bytes: int,
        index_lost: Callable[[], None],
        failed: Callable[[OSError], None],
    ) -> None:
        self._root, self._index, self._health = root, index, health
        self._store_id, self._new_id = store_id, new_id
        self._most_bytes, self._most_items = queue_bytes, queue_items
        self._extent_bytes = extent_bytes
        self._index_lost, self._failed = index_lost, failed
        self._queue: deque[Write] = deque()
        self._bytes = 0
        self._active: Write | None = None
        self._closed = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="kvstore-writer", daemon=True)
        self._thread.start()

    @property
    def waiting_bytes(self) -> int:
        return self._bytes

    @property
    def waiting(self) -> int:
        return len(self._queue)

    def full(self, nbytes: int) -> bool:
        """Whether the queue is at its bound for a write of that size: said before its bytes are copied, and counted."""
        with self._changed:
            if not self._closed and len(self._queue) < self._most_items and self._bytes + nbytes <= self._most_bytes:
                return False
        self._health.count("writes_dropped_queue")
        return True

    def put(self, write: Write) -> bool:
        """Queue a write, or drop it (False) when the queue is at its bound."""
        with self._changed:
            if self._closed or len(self._queue) >= self._most_items or self._bytes + write.nbytes > self._most_bytes:
                self._health.count("writes_dropped_queue")
                accepted = False
            else:
                self._queue.append(write)
                self._bytes += write.nbytes
                self._changed.notify_all()
                accepted = True
        if not accepted and write.done is not None:
            write.done()
        return accepted

    def flush(self, timeout_s: float) -> bool:
        """Wait until everything queued is written or dropped; False when `timeout_s` passed first."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._queue and self._active is None, timeout_s)

    def void(self, blocks: frozenset[BlockHash], timeout_s: float) -> None:
        """Drop what is queued of these blocks. Raises TimeoutError where one that has begun does not end."""
        with self._changed:
            ended = self._changed.wait_for(
                lambda: self._active is None or blocks.isdisjoint(self._active.names), timeout_s
            )
            void = [write for write in self._queue if not blocks.isdisjoint(write.names)]
            for write in void:
                self._queue.remove(write)
                self._bytes -= write.nbytes
                self._health.count("writes_dropped_faulty")
            self._changed.notify_all()
        for write in void:
            if write.done is not None:
                write.done()
        if not ended:
            raise TimeoutError("a write of faulty blocks goes on")

    def close(self, timeout_s: float) -> None:
        self.flush(timeout_s)
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while True:
            with self._changed:
                write = self._next()
                if write is None:
                    return
                self._active = write
            try:
                if not self._attempt(write):
                    with self._changed:
                        self._queue.append(write)
                        self._active = None
                        self._changed.notify_all()
                    continue
            except Exception as error:  # noqa: BLE001 - one bad write must not end the thread; it is counted
                self._health.count("writes_failed")
                self._health.count(f"writes_failed_{type(error).__name__}")
            with self._changed:
                self._bytes -= write.nbytes
                self._active = None
                self._changed.notify_all()
            if write.done is not None:
                write.done()

    def _next(self) -> Write | None:
        """The next write whose time has come; None at the end. Called with the lock, which it gives up to wait."""
        while True:
            now = time.monotonic()
            for position, write in enumerate(self._queue):
                if write.not_before <= now or self._closed:
                    del self._queue[position]
                    return write
            if self._closed:
                return None
            first = min((write.not_before for write in self._queue), default=None)
            self._changed.wait(None if first is None else first - now)

    def _attempt(self, write: Write) -> bool:
        """Write, waiting for the index where it is away, until the deadline. False: to be tried again later."""
        while not self._closed:
            if time.monotonic() > write.deadline:
                break
            try:
                self._write(write)
                return True
            except IndexUnavailable:
                time.sleep(_PAUSE_S)
            except _ParentMissing:
                now = time.monotonic()
                write.orphan_until = write.orphan_until or min(write.deadline, now + ORPHAN_PATIENCE_S)
                if now < write.orphan_until:
                    write.not_before = now + _PAUSE_S
                    return False
                self._health.count("writes_dropped_orphan")
                return True
            except OSError as error:
                self._failed(error)
                self._health.count("writes_dropped_disk")
                return True
        self._health.count("writes_dropped_deadline")
        return True

    def _write(self, write: Write) -> None:
        self._root.check(self._store_id())
        if write.kind != PAGED:
            self._write_extent(write, 0, 1)
            return
        found = self._touch(write)
        first = max(found, write.start)
        if found < write.start:
            raise _ParentMissing
        at, end = first - write.start, len(write.blocks)
        while at < end:
            upto, size = at, 0
            while upto < end and (upto == at or self._fits(upto - at, size + len(write.blocks[upto]))):
                size += len(write.blocks[upto])
                upto += 1
            if not self._write_extent(write, at, upto):
                return
            at = upto
        self._health.clear(Trouble.DISK_FULL, Trouble.READ_ONLY)

    def _fits(self, blocks: int, size: int) -> bool:
        return blocks < MAX_BLOCKS and size <= self._extent_bytes

    def _touch(self, write: Write) -> int:
        """Use what is there of the chain; an extent that expired but still lies there comes back to life."""
        names = short_names(write.chain)
        before = self._index.lookup(names)
        if before.store_id != self._store_id():
            self._index_lost()
            raise IndexUnavailable("the index is lost")
        found, renew = self._index.touch(names, write.retention_class, record_from=len(write.chain))
        for extent in renew:
            self._root.renew(extent)
        return found

    def _write_extent(self, write: Write, at: int, upto: int) -> bool:
        """Write blocks [at, upto) as one extent and commit it. False when the rest is void."""
        blocks = write.blocks[at:upto]
        if write.kind == PAGED:
            depth = write.start + at
            hashes = b"".join(write.chain[depth : depth + len(blocks)])
            parent = write.chain[depth - 1] if depth else b""
            claim = write.retention_class
        else:
            depth = len(write.chain) - 1
            hashes = sidecar_hash(write.chain[-1], write.kind)
            parent = write.chain[-1]
            claim = sidecar_claim(write.retention_class, unit_end=write.unit_end)
        assert len(hashes) == len(blocks) * HASH_BYTES
        header = ExtentHeader(
            extent_id=self._new_id(),
            fingerprint=write.fingerprint,
            salt_id=write.salt_id,
            retention_class=write.retention_class,
            kind=write.kind,
            unit_end=write.unit_end,
            depth=depth,
            parent=parent,
            written_us=micros(write.created),
            hashes=hashes,
            lengths=tuple(len(block) for block in blocks),
            checksums=tuple(checksum(block) for block in blocks),
        )
        extent = ExtentId(header.extent_id)
        size = self._root.write(extent, encode_header(header), blocks)
        answer = self._commit(header, claim, size, write.deadline)
        if answer in ("stored", "exists"):
            self._health.count("extents_written")
            self._health.count("blocks_written", len(blocks))
            self._health.count("bytes_written", size)
            return True
        self._root.remove(extent)
        if answer == "twin":  # another writer was first with the same bytes: what follows hangs below its blocks
            self._health.count("writes_twin")
            return True
        self._health.count(f"writes_dropped_{answer}")
        if answer == "lost":
            self._index_lost()
        return False

    def _commit(self, header: ExtentHeader, claim: str, size: int, deadline: float) -> str:
        """Commit, again and again with the same id while the index is away (an answer may have been lost)."""
        while True:
            try:
                return self._index.commit(header, claim, store_id=self._store_id(), file_bytes=size)
            except IndexUnavailable:
                if self._closed or time.monotonic() > deadline:
                    self._root.remove(ExtentId(header.extent_id))
                    raise
                time.sleep(_PAUSE_S)
