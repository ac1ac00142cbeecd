"""The control worker's own care for the store: look at it, sweep it, and say what is wrong.

Workers sweep too, and a lock lets one at a time; this is what frees space while no worker runs. Everything that touches
the disk runs on a thread of its own: a mount that hangs holds up that thread and nothing else.
"""

from __future__ import annotations

import enum
import errno
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from functools import cache
from typing import Final

from controlplane.caching.store import store_settings
from workers.kvstore.files import RootForeign, RootMissing
from workers.kvstore.health import Trouble, trouble_of
from workers.kvstore.index import IndexUnavailable
from workers.kvstore.policy import PolicyError
from workers.kvstore.pool import BoundedPool, PoolFull
from workers.kvstore.store import Store

log = logging.getLogger(__name__)

WAIT_S: Final = 5.0
"""How long a task waits for a round; the round goes on behind it."""
SLOW_S: Final = 2.0
"""A look at the folder, a probe's write included, that takes longer is worth an alert."""
PROBE: Final = "probe-control"
PROBE_BYTES: Final = 64 * 1024


class Stage(enum.StrEnum):
    IDLE = "idle"
    LOOKING = "looking"
    SWEEPING = "sweeping"


class Tender:
    """One per process; thread-safe. `open_store` is called on the first round, on the tender's thread."""

    def __init__(self, open_store: Callable[[], Store]) -> None:
        self._open = open_store
        self._store: Store | None = None
        self._threads = BoundedPool("tend", threads=1, bound=1)
        self._lock = threading.Lock()
        self._round: Future[None] | None = None
        self._stage = Stage.IDLE
        self._since = time.monotonic()
        self._troubles: dict[str, str] = {}
        self.rounds = 0

    def tend(self, wait_s: float = WAIT_S) -> dict[str, str]:
        """Start a round unless one is under way, wait for it at most `wait_s`; what is wrong, as it is known now."""
        with self._lock:
            if self._round is None or self._round.done():
                with suppress(PoolFull):
                    self._round = self._threads.submit(self._go_round, deadline=time.monotonic() + 60)
            current = self._round
        if current is not None:
            with suppress(TimeoutError, CancelledError):
                current.result(wait_s)
        return self.troubles()

    def troubles(self) -> dict[str, str]:
        """What the last round found, and a look that has not come back."""
        stage, waited = self._stage, time.monotonic() - self._since
        if stage is Stage.LOOKING and waited > SLOW_S:
            return {
                **self._troubles,
                Trouble.SLOW.value: f"a look at the store's folder has taken {waited:.0f} s so far",
            }
        return dict(self._troubles)

    def close(self) -> None:
        self._threads.close(1.0)
        if self._store is not None:
            self._store.close()

    def _enter(self, stage: Stage) -> None:
        self._stage, self._since = stage, time.monotonic()

    def _go_round(self) -> None:
        self._enter(Stage.LOOKING)
        try:
            if self._store is None:
                self._store = self._open()
            store = self._store
            found = self._look(store)
            if not _AWAY & found.keys():
                self._enter(Stage.SWEEPING)
                self._sweep(store, found)
            self._troubles = found
            self.rounds += 1
        finally:
            self._enter(Stage.IDLE)

    def _look(self, store: Store) -> dict[str, str]:
        store.maintenance.look()
        took = 0.0
        if store.maintenance.store_id and not store.health.has(Trouble.ROOT_MISSING, Trouble.ROOT_FOREIGN):
            began = time.monotonic()
            try:
                store.root.write_small(PROBE, bytes(PROBE_BYTES), replace=True)
                store.health.clear(Trouble.DISK_FULL, Trouble.READ_ONLY, Trouble.IO_ERROR)
            except OSError as error:
                store.health.report(trouble_of(error), str(error))
            took = time.monotonic() - began
        found = {one.trouble.value: one.reason for one in store.status().ailments}
        if took > SLOW_S:
            found[Trouble.SLOW.value] = f"writing {PROBE_BYTES // 1024} KiB took {took:.1f} s"
        return found

    def _sweep(self, store: Store, found: dict[str, str]) -> None:
        """Into `found` goes what the sweep brought to light, or ended."""
        try:
            report = store.sweep()
        except (IndexUnavailable, RootMissing, RootForeign, PolicyError) as error:
            log.warning("the sweep broke off and goes on next time: %s", error)
        except OSError as error:
            if error.errno != errno.ENOENT:
                found[trouble_of(error).value] = str(error)
            log.warning("the sweep broke off and goes on next time: %s", error)
        else:
            found.pop(Trouble.OVER_BUDGET.value, None)
            if report is not None and (report.expired_blocks or report.evicted_blocks):
                log.info(
                    "swept: %d blocks expired, %d evicted, %d files removed in %.1f s",
                    report.expired_blocks, report.evicted_blocks, report.files_removed, report.seconds,
                )  # fmt: skip
            if report is not None and report.over_budget:
                found[Trouble.OVER_BUDGET.value] = "; ".join(report.over_budget)


_AWAY: Final = {
    t.value for t in (Trouble.INDEX_AWAY, Trouble.INDEX_FOREIGN, Trouble.ROOT_MISSING, Trouble.ROOT_FOREIGN)
}


@cache
def tender() -> Tender:
    """This process's."""
    return Tender(lambda: Store(store_settings()))
