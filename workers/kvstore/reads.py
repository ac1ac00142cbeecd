"""Reads of runs: queued, prefetched, joined within a deadline; and what a failed read says about store and disk."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass
from functools import partial
from typing import Final

from workers.identity import BlockHash
from workers.kvstore.extent import ExtentError, ExtentId
from workers.kvstore.files import Root, RootForeign, RootMissing
from workers.kvstore.health import Health, Trouble, trouble_of
from workers.kvstore.index import Index, IndexUnavailable, Location
from workers.kvstore.pool import BoundedPool, PoolFull
from workers.kvstore.reading import (
    BufferPool,
    HeaderCache,
    RunData,
    Segment,
    SegmentData,
    SegmentReader,
    abandon,
    gather,
    groups_of,
    segments_of,
)
from workers.kvstore.settings import StoreSettings


@dataclass(frozen=True, slots=True)
class Hit:
    """The part of a chain that the store can serve now, under the policy as it is now."""

    blocks: int
    runs: tuple[Location, ...] = ()
    reason: str = ""
    """Why nothing could be looked up; empty when the answer is the index's."""


MISS: Final = Hit(0)


class Prefetch:
    """A read under way. `hit` says what the index promised; `take` waits for the bytes."""

    def __init__(self, reads: Reads, chain: list[BlockHash], start: int, stop: int) -> None:
        self._reads, self._chain, self._start, self._stop = reads, chain, start, stop
        self._groups: list[list[Segment]] = []
        self._futures: list[Future[list[SegmentData]]] = []
        self._dropped = False
        self._lock = threading.Lock()
        self.hit: Future[Hit] = Future()

    def begin(self, hit: Hit) -> None:
        """Start the reads of what was found, unless nobody waits for them any more."""
        with self._lock:
            if not self._dropped:
                segments = segments_of(hit.runs, self._start, min(self._stop, hit.blocks))
                self._groups, self._futures = self._reads.submit(segments, self._chain)
        self.hit.set_result(hit)

    def done(self) -> bool:
        return self.hit.done() and all(future.done() for future in self._futures)

    def take(self, deadline_s: float) -> RunData:
        """Verified blocks, in order, up to the first that is missing, damaged or late."""
        deadline = time.monotonic() + deadline_s
        try:
            hit = self.hit.result(deadline_s)
        except (TimeoutError, CancelledError):
            self.drop()  # a lookup that comes later reads nothing
            self._reads.health.count("reads_deadline")
            return RunData(self._start, reason="deadline")
        if not self._groups:
            return RunData(self._start, reason=hit.reason)
        return self._reads.gather(self._start, self._groups, self._futures, deadline)

    def drop(self) -> None:
        """Nobody needs the bytes any more. Not after `take`, whose result is released instead."""
        with self._lock:
            self._dropped = True
            self._reads.abandon(self._futures)


class Reads:
    """Thread-safe. `store_id` names the root that is expected to be mounted; `wake` makes maintenance look at once."""

    def __init__(
        self,
        settings: StoreSettings,
        root: Root,
        index: Index,
        health: Health,
        *,
        store_id: Callable[[], str],
        wake: Callable[[], None],
    ) -> None:
        self.health = health
        self._root, self._index = root, index
        self._store_id, self._wake = store_id, wake
        self._deadline_s = settings.read_deadline_s
        self._buffers = BufferPool(settings.buffer_bytes)
        self._headers = HeaderCache(settings.header_cache_blocks)
        self._reader = SegmentReader(root, self._buffers, self._headers)
        self._pool = BoundedPool("read", threads=settings.readers, bound=settings.read_queue)
        self._verdicts = BoundedPool("verdict", threads=1, bound=settings.read_queue)

    @property
    def waiting(self) -> int:
        return self._pool.waiting

    @property
    def busy(self) -> int:
        return self._pool.busy

    def close(self, timeout_s: float) -> None:
        for pool in (self._pool, self._verdicts):
            pool.close(timeout_s)

    def submit(
        self, segments: Sequence[Segment], chain: list[BlockHash]
    ) -> tuple[list[list[Segment]], list[Future[list[SegmentData]]]]:
        """Queue the reads, small ones together; fewer groups than there would be when the queue is at its bound."""
        deadline = time.monotonic() + self._deadline_s
        groups = groups_of(segments, self._reader.block_bytes)
        futures: list[Future[list[SegmentData]]] = []
        for group in groups:
            try:
                futures.append(self._pool.submit(partial(self._reader.read_group, group, chain), deadline=deadline))
            except PoolFull:
                self.health.count("reads_dropped_queue")
                break
        return groups[: len(futures)], futures

    def abandon(self, futures: Sequence[Future[list[SegmentData]]]) -> None:
        abandon(futures, self._reader)

    def gather(
        self,
        start: int,
        groups: Sequence[Sequence[Segment]],
        futures: Sequence[Future[list[SegmentData]]],
        deadline: float,
    ) -> RunData:
        run = gather(
            start,
            groups,
            futures,
            deadline=deadline,
            reader=self._reader,
            give=self._buffers.give,
            failed=self._failed,
        )
        if not run.reason:
            self.health.clear(Trouble.SLOW, Trouble.IO_ERROR)
        self.health.count("blocks_read", len(run.blocks))
        self.health.count("bytes_read", run.nbytes)
        return run

    def _failed(self, extent: ExtentId, error: Exception) -> None:
        """Count and report what a failed read says. The engine's thread may come here: file system and index are left
        to another."""
        self._headers.drop(extent)
        if isinstance(error, TimeoutError):
            self.health.count("reads_deadline")
            self.health.report(Trouble.SLOW, f"a read took longer than {self._deadline_s:g} s")
        elif isinstance(error, ExtentError):
            self.health.count(f"reads_{error.reason}")
            self.health.report(Trouble.CORRUPT, f"{extent.hex()}: {error}")
            self._behind(partial(self._forget, extent, "corrupt"))
        elif isinstance(error, FileNotFoundError | NotADirectoryError):
            self.health.count("reads_gone")
            self._behind(partial(self._gone, extent))
        else:
            self.health.count("reads_failed")
            self.health.report(trouble_of(error) if isinstance(error, OSError) else Trouble.IO_ERROR, str(error))
            self._wake()

    def _behind(self, work: Callable[[], None]) -> None:
        """Act upon a failed read later; whoever reads the extent next finds out again."""
        try:
            self._verdicts.submit(work, deadline=float("inf"))
        except PoolFull:
            self.health.count("forgets_failed")

    def _gone(self, extent: ExtentId) -> None:
        """Is it this extent, or the whole file system?"""
        try:
            self._root.check(self._store_id())
            lost = not self._root.where(extent).exists()  # the mount may have come back meanwhile
        except (RootMissing, RootForeign, OSError) as problem:
            self.health.report(Trouble.ROOT_MISSING, str(problem))
            self._wake()
        else:
            if lost:
                self._forget(extent, "lost")

    def _forget(self, extent: ExtentId, reason: str) -> None:
        try:
            self._index.forget([extent], reason=reason)
        except IndexUnavailable:
            self.health.count("forgets_failed")
