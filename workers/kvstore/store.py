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
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from workers.identity import BlockHash
from workers.kvstore.clock import Clock, SystemClock
from workers.kvstore.extent import ExtentId, salt_id, short_names
from workers.kvstore.files import Root
from workers.kvstore.finding import Finder
from workers.kvstore.forgetting import forget_chain
from workers.kvstore.health import Ailment, Health, Trouble, trouble_of
from workers.kvstore.index import Index, IndexUnavailable
from workers.kvstore.maintenance import Maintenance
from workers.kvstore.policy_feed import PolicyFeed
from workers.kvstore.pool import BoundedPool, PoolFull
from workers.kvstore.preview import Previewer
from workers.kvstore.reading import RunData
from workers.kvstore.reads import Hit, Prefetch, Reads
from workers.kvstore.settings import StoreSettings
from workers.kvstore.sidecars import Sidecars
from workers.kvstore.sweeper import Sweeper, SweepReport
from workers.kvstore.upkeep import Upkeep
from workers.kvstore.write import Buffer, Write
from workers.kvstore.writing import Writer

log: Final = logging.getLogger(__name__)


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
            most_bytes=settings.most_bytes,
            most_blocks=settings.most_blocks,
        )
        self._reads = Reads(
            settings,
            self.root,
            self.index,
            self.health,
            store_id=lambda: self.maintenance.store_id,
            wake=lambda: self.maintenance.wake(),
        )
        self._finder = Finder(
            self.index,
            self.policy,
            self.health,
            store_id=lambda: self.maintenance.store_id,
            index_lost=self._index_lost,
        )
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
        self.sidecars = Sidecars(
            settings, self.clock, self.index, self.policy, self.health, self._reads, self._writer, self._finder.foreign
        )
        self.maintenance = Maintenance(
            settings, self.root, self.index, self.policy, self.health, self.upkeep, self.sweep
        )
        self.maintenance.open()

    def close(self, timeout_s: float = 5.0) -> None:
        """Write what is queued, within `timeout_s`, and end all threads."""
        self._writer.close(timeout_s)
        self.maintenance.stop()
        for pool in (self._uses, self._lookups, self.sidecars, self._reads):
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
        return self._finder.find(chain)

    # -- reading -----------------------------------------------------------------------------------------------------

    def prefetch(self, chain: Sequence[BlockHash], start: int = 0, stop: int | None = None) -> Prefetch:
        """Look up and read blocks [start, stop) of the chain in the background; returns at once."""
        blocks = list(chain)
        fetch = Prefetch(self._reads, blocks, start, len(blocks) if stop is None else stop)

        def look() -> None:
            fetch.begin(self.find(blocks))

        def looked(future: Future[None]) -> None:
            if future.cancelled():
                fetch.hit.cancel()
            elif (error := future.exception()) is not None:
                self.health.count("lookups_failed")
                log.error("a lookup failed", exc_info=error)
                fetch.hit.cancel()

        try:
            future = self._lookups.submit(look, deadline=time.monotonic() + self.settings.read_deadline_s)
            future.add_done_callback(looked)
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
        fetch = Prefetch(self._reads, blocks, start, len(blocks) if stop is None else stop)
        fetch.begin(hit)
        return fetch.take(limit)

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
        created: float | None = None,
        done: Callable[[], None] | None = None,
    ) -> bool:
        """Store `blocks`, which are the chain's from `start` to its end, behind the request. Returns at once;
        False when the write was dropped (counted).

        A purge after `created` (Unix seconds, when the bytes began to be computed; None: now) makes the write void.
        Without `done` the bytes are copied now. With it they are borrowed until it is called (from another thread).
        """
        if start + len(blocks) != len(chain):
            raise ValueError(f"{len(blocks)} blocks from {start} on do not end a chain of {len(chain)}")
        if not blocks:
            return True
        if done is None and self._writer.full(sum(len(block) for block in blocks)):
            return False
        return self._writer.put(
            Write(
                chain=list(chain),
                start=start,
                blocks=blocks if done is not None else [bytes(block) for block in blocks],
                salt_id=salt_id(salt),
                fingerprint=fingerprint,
                retention_class=retention_class,
                created=self.clock.now() if created is None else created,
                deadline=time.monotonic() + self.settings.write_deadline_s,
                done=done,
            )
        )

    def forget_chain(self, chain: Sequence[BlockHash], kinds: Sequence[str] = ()) -> Future[int] | None:
        """The bytes of these blocks, or of their sidecars of `kinds`, are not to be trusted: nobody finds them any
        more. Behind the request; the future has how many extents went, or why it has to be tried again (like None).
        """
        work = partial(forget_chain, self.index, self._writer, list(chain), list(kinds))
        try:
            return self._uses.submit(work, deadline=float("inf"))
        except PoolFull:
            return None

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
