"""The store's own upkeep in the background: whose root and index these are, what came back, sweeps, rebuilds."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Final

from workers.kvstore.files import Root, RootForeign, RootMissing
from workers.kvstore.health import Health, Trouble
from workers.kvstore.index import Index, IndexUnavailable
from workers.kvstore.policy import PolicyError
from workers.kvstore.policy_feed import PolicyFeed
from workers.kvstore.settings import StoreSettings
from workers.kvstore.sweeper import SweepReport
from workers.kvstore.upkeep import Upkeep

log: Final = logging.getLogger(__name__)

TICK_S: Final = 1.0
ORPHAN_INTERVAL_S: Final = 3600.0
"""How often files without an index entry (their writer died between rename and commit) are looked for."""
OPEN_WAIT_S: Final = 5.0
_PROBE: Final = "probe"


class Maintenance:
    """`open` once; then, with `settings.background`, a thread that looks after the store every second."""

    def __init__(
        self,
        settings: StoreSettings,
        root: Root,
        index: Index,
        policy: PolicyFeed,
        health: Health,
        upkeep: Upkeep,
        sweep: Callable[[], SweepReport | None],
    ) -> None:
        self._settings, self._root, self._index = settings, root, index
        self._policy, self._health, self._upkeep, self._sweep = policy, health, upkeep, sweep
        self.store_id = ""
        """Id of the root when it was last seen; empty until then."""
        self._wake = threading.Event()
        self._opened = threading.Event()
        self._stopping = False
        self._thread: threading.Thread | None = None
        self._beat = time.monotonic()
        self._next_sweep = 0.0
        self._next_orphans = time.monotonic() + ORPHAN_INTERVAL_S

    @property
    def age_s(self) -> float:
        """Seconds since the loop last went round; it does not run without `settings.background`."""
        return time.monotonic() - self._beat

    def open(self) -> None:
        """Find or make root and index, load the policy. What is missing is reported and tried again by the thread; a
        mount that hangs keeps nobody waiting for longer than OPEN_WAIT_S."""
        if not self._settings.background:
            self._open()
            return
        self._thread = threading.Thread(target=self._run, name="kvstore-maintenance", daemon=True)
        self._thread.start()
        if not self._opened.wait(OPEN_WAIT_S):
            self._health.report(Trouble.SLOW, f"{self._root.path} does not answer")

    def _open(self) -> None:
        self.look()
        try:
            self._policy.load()
        except (IndexUnavailable, PolicyError, OSError) as error:
            log.warning("starting with retention policy %d: %s", self._policy.current.version, error)

    def stop(self) -> None:
        self._stopping = True
        self._wake.set()
        self._policy.stop()
        if self._thread is not None:
            self._thread.join(5)

    def wake(self) -> None:
        """Something looks wrong: look now."""
        self._wake.set()

    def look(self) -> None:
        """Check root and index, adopt or rebuild the index where it is new or lost."""
        indexed = self._indexed()
        if not self._see_root(indexed) or indexed is None:
            return
        if indexed == "":
            with self._index.exclusive("rebuild", seconds=600.0) as mine:
                if mine:
                    report = self._upkeep.rebuild(self.store_id)
                    log.info(
                        "index rebuilt: %d extents, %d blocks in %.1f s", report.extents, report.blocks, report.seconds
                    )
        elif indexed != self.store_id:
            self._health.report(
                Trouble.INDEX_FOREIGN,
                f"the index is of store {indexed}, the root is {self.store_id}: run `manage.py store rebuild`",
            )
        else:
            self._health.clear(Trouble.INDEX_FOREIGN, Trouble.INDEX_LOST)

    def _indexed(self) -> str | None:
        try:
            indexed = self._index.store_id()
        except IndexUnavailable as error:
            self._health.report(Trouble.INDEX_AWAY, str(error))
            return None
        self._health.clear(Trouble.INDEX_AWAY)
        return indexed

    def _see_root(self, indexed: str | None) -> bool:
        """Whether the store's folder is there. A new store is made only where neither side knows of one."""
        try:
            try:
                found = self._root.store_id()
            except RootMissing:
                if indexed or self.store_id or indexed is None or not self._settings.create:
                    raise
                found = self._root.create()
            if self.store_id and found != self.store_id:
                raise RootForeign(f"{self._root.path} is store {found} now, it was {self.store_id}")
        except RootForeign as error:
            self._health.report(Trouble.ROOT_FOREIGN, str(error))
            return False
        except (RootMissing, OSError) as error:
            self._health.report(Trouble.ROOT_MISSING, str(error))
            return False
        self.store_id = found
        self._health.clear(Trouble.ROOT_MISSING, Trouble.ROOT_FOREIGN)
        return True

    def _run(self) -> None:
        while not self._stopping:
            try:
                if not self._opened.is_set():
                    self._open()
                    self._policy.start()
                    self._opened.set()
                self._round()
            except (IndexUnavailable, RootMissing, RootForeign, PolicyError, OSError) as error:
                self._health.count("maintenance_failed")
                log.warning("the store's upkeep will try again: %s", error)
            except Exception:  # the loop must outlive a bug; it is counted and logged with its trace
                self._health.count("maintenance_failed")
                log.exception("the store's upkeep failed")
            self._beat = time.monotonic()
            self._wake.wait(TICK_S)
            self._wake.clear()

    def _round(self) -> None:
        self.look()
        now = time.monotonic()
        if self._health.has(Trouble.ROOT_MISSING, Trouble.ROOT_FOREIGN, Trouble.INDEX_AWAY, Trouble.INDEX_FOREIGN):
            return
        if self._health.has(Trouble.DISK_FULL, Trouble.READ_ONLY, Trouble.IO_ERROR):
            self._try_writing()
        if now >= self._next_sweep:
            self._next_sweep = now + self._settings.sweep_interval_s
            self._sweep()
        if now >= self._next_orphans:
            self._next_orphans = now + ORPHAN_INTERVAL_S
            with self._index.exclusive("rebuild", seconds=600.0) as mine:
                if mine:
                    self._upkeep.rebuild(self.store_id)

    def _try_writing(self) -> None:
        """See whether the file system takes writes again; a full disk is swept first."""
        if self._health.has(Trouble.DISK_FULL):
            self._next_sweep = 0.0
        try:
            self._root.write_small(_PROBE, bytes(64 * 1024), replace=True)
        except OSError:
            return  # the ailment stays, with its reason
        self._health.clear(Trouble.DISK_FULL, Trouble.READ_ONLY, Trouble.IO_ERROR)
