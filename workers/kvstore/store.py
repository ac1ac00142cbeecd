"""The KV store as a worker sees it: look up, read runs, hand over runs to write, say what was used.

Every method is safe to call from any thread, returns within its deadline and never raises for what can go wrong with
disk, mount or index: the answer is then a miss, a counter and an entry in `status`.

A lookup is not a use: the engine calls `use` once per request, when it is scheduled, with the prefix it takes from pool
and store together. Writing counts as use.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from workers.identity import BlockHash
from workers.kvstore.clock import Clock, SystemClock
from workers.kvstore.extent import PAGED, ExtentError, ExtentId, salt_id, short_names, sidecar_hash
from workers.kvstore.files import Root, RootForeign, RootMissing
from workers.kvstore.health import Ailment, Health, Trouble, trouble_of
from workers.kvstore.index import Index, IndexUnavailable, Location, Lookup
from workers.kvstore.maintenance import Maintenance
from workers.kvstore.policy import PolicyError, RetentionPolicy, sidecar_claim
from workers.kvstore.policy_feed import PolicyFeed
from workers.kvstore.pool import BoundedPool, PoolFull
from workers.kvstore.preview import Previewer
from workers.kvstore.reading import (
    BufferPool,
    HeaderCache,
    RunData,
    Segment,
    SegmentData,
    SegmentReader,
    gather,
    segments_of,
)
from workers.kvstore.settings import StoreSettings
from workers.kvstore.sweeper import Sweeper, SweepReport
from workers.kvstore.upkeep import Upkeep
from workers.kvstore.writing import Buffer, Write, Writer

log: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Hit:
    """The part of a chain that the store can serve now, under the policy as it is now."""

    blocks: int
    runs: tuple[Location, ...] = ()
    reason: str = ""
    """Why nothing could be looked up; empty when the answer is the index's."""


MISS: Final = Hit(0)


@dataclass(frozen=True, slots=True)
class StoreStatus:
    ok: bool
    ailments: list[Ailment]
    policy_version: int
    policy_age_s: float
    maintenance_age_s: float
    reads_waiting: int
    reads_busy: int
    writes_waiting: int
    write_bytes_waiting: int
    counters: dict[str, int] = field(default_factory=dict)


class Prefetch:
    """A read under way. `hit` says what the index promised; `take` waits for the bytes."""

    def __init__(self, store: Store, chain: list[BlockHash], start: int, stop: int) -> None:
        self._store, self._chain, self._start, self._stop = store, chain, start, stop
        self._segments: list[Segment] = []
        self._futures: list[Future[SegmentData]] = []
        self.hit: Future[Hit] = Future()

    def begin(self, hit: Hit) -> None:
        """Start the reads of what was found."""
        self._segments = segments_of(hit.runs, self._start, min(self._stop, hit.blocks))
        self._futures = self._store.read_segments(self._segments, self._chain)
        self._segments = self._segments[: len(self._futures)]
        self.hit.set_result(hit)

    def done(self) -> bool:
        return self.hit.done() and all(future.done() for future in self._futures)

    def take(self, deadline_s: float) -> RunData:
        """Verified blocks, in order, up to the first that is missing, damaged or late."""
        deadline = time.monotonic() + deadline_s
        try:
            hit = self.hit.result(deadline_s)
        except (TimeoutError, CancelledError):
            self._store.health.count("reads_deadline")
            return RunData(self._start, reason="deadline")
        if not self._segments:
            return RunData(self._start, reason=hit.reason)
        return self._store.gather(self._start, self._segments, self._futures, deadline)

    def drop(self) -> None:
        """Nobody needs the bytes any more."""
        self.take(0.0).release()


class Store:
    def __init__(
        self,
        settings: StoreSettings,
        *,
        clock: Clock | None = None,
        new_id: Callable[[], ExtentId] | None = None,
    ) -> None:
        self.settings = settings
        self.clock = clock or SystemClock()
        self.health = Health()
        self.root = Root(Path(settings.root), fsync=settings.fsync, now=self.clock.now)
        self.index = Index(
            settings.index_url,
            clock=self.clock,
            namespace=settings.namespace,
            timeout_s=settings.index_timeout_s,
            most_blocks=settings.most_blocks,
            ghosts=settings.ghosts,
        )
        self.policy = PolicyFeed(self.index, self.root)
        self.upkeep = Upkeep(self.index, self.root, self.health)
        self.previewer = Previewer(self.index)
        self._sweeper = Sweeper(
            self.index,
            self.root,
            self.health,
            reserve_bytes=settings.reserve_bytes,
            most_blocks=settings.most_blocks,
        )
        self._buffers = BufferPool(settings.buffer_bytes)
        self._headers = HeaderCache(settings.header_cache_blocks)
        self._reader = SegmentReader(self.root, self._buffers, self._headers)
        self._reads = BoundedPool("read", threads=settings.readers, bound=settings.read_queue)
        self._lookups = BoundedPool("lookup", threads=2, bound=settings.read_queue)
        self._uses = BoundedPool("use", threads=1, bound=settings.write_queue)
        self._writer = Writer(
            self.root,
            self.index,
            self.health,
            store_id=lambda: self.maintenance.store_id,
            new_id=new_id or (lambda: ExtentId(secrets.token_bytes(16))),
            queue_bytes=settings.write_queue_bytes,
            queue_items=settings.write_queue,
            extent_bytes=settings.extent_bytes,
            index_lost=self._index_lost,
            failed=self._disk_failed,
        )
        self.maintenance = Maintenance(
            settings, self.root, self.index, self.policy, self.health, self.upkeep, self.sweep
        )
        self.maintenance.open()

    def close(self, timeout_s: float = 5.0) -> None:
        """Write what is queued, within `timeout_s`, and end all threads."""
        self._writer.close(timeout_s)
        self.maintenance.stop()
        for pool in (self._uses, self._lookups, self._reads):
            pool.close(timeout_s)
        self.index.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- looking up --------------------------------------------------------------------------------------------------

    def find(self, chain: Sequence[BlockHash]) -> Hit:
        """How much of the chain (hashes from the first block on) can be served now. One round trip, bounded by the
        index's timeout. Not a use, and never counted as a hit."""
        if not chain:
            return MISS
        try:
            lookup = self.index.lookup(short_names(chain))
            if (problem := self._foreign(lookup)) is not None:
                return Hit(0, reason=problem)
            policy = self.policy.ensure(lookup.policy_version)
        except (IndexUnavailable, PolicyError) as error:
            self.health.report(Trouble.INDEX_AWAY, str(error))
            self.health.count("lookups_failed")
            return Hit(0, reason="index")
        self.health.clear(Trouble.INDEX_AWAY)
        if self.health.has(Trouble.ROOT_MISSING, Trouble.ROOT_FOREIGN):
            return Hit(0, reason="root")
        return self._live(lookup.runs, policy)

    def _live(self, runs: Sequence[Location], policy: RetentionPolicy) -> Hit:
        now, kept, blocks = self.index.now_us(), [], 0
        for run in runs:
            if not policy.live(run.claims, now):
                break
            kept.append(run)
            blocks += run.count
        return Hit(blocks, tuple(kept))

    def _foreign(self, lookup: Lookup) -> str | None:
        if lookup.store_id == self.maintenance.store_id and lookup.store_id:
            return None
        if not lookup.store_id:
            self._index_lost()
            return "index_lost"
        if self.maintenance.store_id:
            self.health.report(Trouble.INDEX_FOREIGN, f"the index is of store {lookup.store_id}")
        return "root"

    # -- reading -----------------------------------------------------------------------------------------------------

    def prefetch(self, chain: Sequence[BlockHash], start: int = 0, stop: int | None = None) -> Prefetch:
        """Look up and read blocks [start, stop) of the chain in the background; returns at once."""
        blocks = list(chain)
        fetch = Prefetch(self, blocks, start, len(blocks) if stop is None else stop)

        def look() -> None:
            fetch.begin(self.find(blocks))

        try:
            future = self._lookups.submit(look, deadline=time.monotonic() + self.settings.read_deadline_s)
            future.add_done_callback(lambda f: fetch.hit.cancel() if f.cancelled() else None)
        except PoolFull:
            self.health.count("reads_dropped_queue")
            fetch.begin(Hit(0, reason="queue"))
        return fetch

    def get_run(
        self,
        chain: Sequence[BlockHash],
        start: int = 0,
        stop: int | None = None,
        *,
        hit: Hit | None = None,
        deadline_s: float | None = None,
    ) -> RunData:
        """Verified bytes of blocks [start, stop), up to the first that cannot be had. With `hit` (from `find`) no
        second lookup is made. Copy the blocks out and release the result."""
        limit = self.settings.read_deadline_s if deadline_s is None else deadline_s
        if hit is None:
            return self.prefetch(chain, start, stop).take(limit)
        blocks = list(chain)
        fetch = Prefetch(self, blocks, start, len(blocks) if stop is None else stop)
        fetch.begin(hit)
        return fetch.take(limit)

    def read_segments(self, segments: Sequence[Segment], chain: list[BlockHash]) -> list[Future[SegmentData]]:
        """Queue the reads; fewer futures than segments when the queue is at its bound."""
        deadline = time.monotonic() + self.settings.read_deadline_s
        futures: list[Future[SegmentData]] = []
        for segment in segments:
            try:
                futures.append(self._reads.submit(lambda s=segment: self._reader.read(s, chain), deadline=deadline))  # type: ignore[misc]
            except PoolFull:
                self.health.count("reads_dropped_queue")
                break
        return futures

    def gather(
        self, start: int, segments: Sequence[Segment], futures: Sequence[Future[SegmentData]], deadline: float
    ) -> RunData:
        run = gather(
            start,
            segments,
            futures,
            deadline=deadline,
            reader=self._reader,
            give=self._buffers.give,
            failed=self._read_failed,
        )
        if not run.reason:
            self.health.clear(Trouble.SLOW, Trouble.IO_ERROR)
        self.health.count("blocks_read", len(run.blocks))
        self.health.count("bytes_read", run.nbytes)
        return run

    # -- using and writing -------------------------------------------------------------------------------------------

    def use(self, chain: Sequence[BlockHash], retention_class: str, *, prompt_blocks: int = 0) -> Future[int] | None:
        """A request was scheduled that takes this chain from pool or store, out of `prompt_blocks` full blocks.

        Touches all its extents at once, behind the request. None when the queue is at its bound (counted)."""
        names = short_names(chain)

        def touch() -> int:
            try:
                found, renew = self.index.touch(names, retention_class, prompt_blocks=prompt_blocks)
                for extent in renew:
                    self.root.renew(extent)
                return found
            except (IndexUnavailable, OSError) as error:
                self.health.count("uses_failed")
                log.debug("a use was not recorded: %s", error)
                return 0

        try:
            return self._uses.submit(touch, deadline=time.monotonic() + self.settings.write_deadline_s)
        except PoolFull:
            self.health.count("uses_dropped")
            return None

    def put_run(
        self,
        chain: Sequence[BlockHash],
        start: int,
        blocks: Sequence[Buffer],
        *,
        salt: bytes,
        fingerprint: str,
        retention_class: str,
        done: Callable[[], None] | None = None,
    ) -> bool:
        """Store `blocks`, which are the chain's from `start` to its end, behind the request. Returns at once;
        False when the write was dropped (counted).

        Without `done` the bytes are copied now. With it they are borrowed until it is called (from another thread).
        """
        if start + len(blocks) != len(chain):
            raise ValueError(f"{len(blocks)} blocks from {start} on do not end a chain of {len(chain)}")
        if not blocks:
            return True
        return self._writer.put(
            Write(
                chain=list(chain),
                start=start,
                blocks=blocks if done is not None else [bytes(block) for block in blocks],
                salt_id=salt_id(salt),
                fingerprint=fingerprint,
                retention_class=retention_class,
                created=self.clock.now(),
                deadline=time.monotonic() + self.settings.write_deadline_s,
                done=done,
            )
        )

    def put_sidecar(
        self,
        chain: Sequence[BlockHash],
        kind: str,
        payload: Buffer,
        *,
        unit_end: bool,
        salt: bytes,
        fingerprint: str,
        retention_class: str,
    ) -> bool:
        """Store the sidecar `kind` of the chain's last block, if the class keeps such; behind the request."""
        if kind == PAGED or not chain:
            raise ValueError("a sidecar has a kind of its own and belongs to a block")
        if self.policy.current.ttl_us(sidecar_claim(retention_class, unit_end=unit_end)) < 0:
            return False
        return self._writer.put(
            Write(
                chain=list(chain),
                start=len(chain) - 1,
                blocks=[bytes(payload)],
                salt_id=salt_id(salt),
                fingerprint=fingerprint,
                retention_class=retention_class,
                kind=kind,
                unit_end=unit_end,
                created=self.clock.now(),
                deadline=time.monotonic() + self.settings.write_deadline_s,
            )
        )

    def get_sidecars(
        self,
        chain: Sequence[BlockHash],
        positions: Sequence[int],
        kind: str,
        *,
        retention_class: str,
        deadline_s: float | None = None,
    ) -> dict[int, bytes]:
        """Verified sidecars of the blocks at `positions`; what is missing is left out. Counts as their use."""
        names = [sidecar_hash(chain[position], kind) for position in positions]
        try:
            lookup = self.index.locate(short_names(names))
            policy = self.policy.ensure(lookup.policy_version)
        except (IndexUnavailable, PolicyError):
            self.health.count("lookups_failed")
            return {}
        if self._foreign(lookup) is not None:
            return {}
        now, wanted, used = self.index.now_us(), [], []
        for number, run in enumerate(lookup.runs):
            if run.count and policy.live(run.claims, now):
                wanted.append(Segment(run.extent, run.offset, 1, number))
        futures = self.read_segments(wanted, names)
        deadline = time.monotonic() + (self.settings.read_deadline_s if deadline_s is None else deadline_s)
        out: dict[int, bytes] = {}
        for segment, future in zip(wanted, futures, strict=False):
            with self.gather(segment.position, [segment], [future], deadline) as run_data:
                if run_data.blocks:
                    out[positions[segment.position]] = bytes(run_data.blocks[0])
                    used.append(segment.extent)
        try:
            self.index.touch_ids(used, sidecar_claim(retention_class, unit_end=True))
        except IndexUnavailable:
            self.health.count("uses_failed")
        return out

    def flush(self, timeout_s: float = 30.0) -> bool:
        """Wait until all that was handed over is written or dropped (tests, replays, shutdown)."""
        return self._writer.flush(timeout_s)

    # -- operations --------------------------------------------------------------------------------------------------

    def sweep(self) -> SweepReport | None:
        """Free what expired or is over a budget, now. None when another process is at it. Raises IndexUnavailable,
        OSError, RootMissing or RootForeign."""
        self.root.check(self.maintenance.store_id)
        with self.index.exclusive("sweep", seconds=120.0) as mine:
            if not mine:
                return None
            self.policy.refresh()
            return self._sweeper.sweep(self.policy.current)

    def status(self) -> StoreStatus:
        ailments = self.health.ailments()
        return StoreStatus(
            ok=not ailments,
            ailments=ailments,
            policy_version=self.policy.current.version,
            policy_age_s=self.policy.age_s,
            maintenance_age_s=self.maintenance.age_s,
            reads_waiting=self._reads.waiting,
            reads_busy=self._reads.busy,
            writes_waiting=self._writer.waiting,
            write_bytes_waiting=self._writer.waiting_bytes,
            counters=self.health.counts(),
        )

    # -- troubles ----------------------------------------------------------------------------------------------------

    def _index_lost(self) -> None:
        self.health.report(Trouble.INDEX_LOST, "the index is empty; it is rebuilt from extent headers")
        self.maintenance.wake()

    def _disk_failed(self, error: OSError) -> None:
        self.health.report(trouble_of(error), str(error))
        self.maintenance.wake()

    def _read_failed(self, extent: ExtentId, error: Exception) -> None:
        """Decide what a failed read says: about this extent, or about the file system."""
        self._headers.drop(extent)
        if isinstance(error, TimeoutError):
            self.health.count("reads_deadline")
            self.health.report(Trouble.SLOW, f"a read took longer than {self.settings.read_deadline_s:g} s")
        elif isinstance(error, ExtentError):
            self.health.count(f"reads_{error.reason}")
            self.health.report(Trouble.CORRUPT, f"{extent.hex()}: {error}")
            self._forget(extent, "corrupt")
        elif isinstance(error, FileNotFoundError | NotADirectoryError):
            self.health.count("reads_gone")
            try:
                self.root.check(self.maintenance.store_id)
            except (RootMissing, RootForeign, OSError) as problem:
                self.health.report(Trouble.ROOT_MISSING, str(problem))
                self.maintenance.wake()
            else:
                self._forget(extent, "lost")
        else:
            self.health.count("reads_failed")
            self.health.report(trouble_of(error) if isinstance(error, OSError) else Trouble.IO_ERROR, str(error))
            self.maintenance.wake()

    def _forget(self, extent: ExtentId, reason: str) -> None:
        try:
            self.index.forget([extent], reason=reason)
        except IndexUnavailable:
            self.health.count("forgets_failed")
