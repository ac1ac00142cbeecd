"""The agent's line to PostgreSQL, on a thread of its own: a database that hangs or is away never holds the agent up.

Reads the wanted state, writes reports (the newest of each worker, when it changed or grew old). Whatever fails is tried
again a second later; until then the last wanted state stands.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from django.db import DatabaseError, InterfaceError, OperationalError, close_old_connections, connections

from controlplane.fleet import selectors, services
from controlplane.fleet.errors import UnknownNode
from controlplane.fleet.models import InvalidTransition
from controlplane.fleet.statuses import WorkerStatus
from workers.home import Home
from workers.node import processes
from workers.node.records import Wanted, WantedState
from workers.node.reports import Report
from workers.node.timing import Timing

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Outgoing:
    report: Report | None
    """None: the worker is gone."""
    written: Report | None = None
    written_at: float = 0.0


class FleetLink:
    def __init__(
        self,
        node: str,
        home: Home,
        timing: Timing,
        *,
        changed: Callable[[WantedState], None],
        agent_age_s: Callable[[], float],
    ) -> None:
        """`changed` is called (on this thread) with each wanted state that was read."""
        self._node, self._home, self._timing = node, home, timing
        self._changed, self._agent_age_s = changed, agent_age_s
        self._outgoing: dict[str, _Outgoing] = {}
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._stopping = False
        self._away = False
        self._thread = threading.Thread(target=self._run, name="agent-fleet", daemon=True)
        self.turned_at = time.monotonic()
        self.read_at: float | None = None
        """Monotonic time of the last wanted state."""
        self.failures = 0

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout_s: float) -> None:
        self._stopping = True
        self._wake.set()
        self._thread.join(timeout_s)

    def nudge(self) -> None:
        self._wake.set()

    def report(self, report: Report) -> None:
        """Say how a worker is; only the newest is kept. Bounded by the number of workers."""
        with self._lock:
            entry = self._outgoing.setdefault(report.worker, _Outgoing(None))
            changed = entry.written != report
            entry.report = report
        if changed:
            self._wake.set()

    def removed(self, worker: str) -> None:
        with self._lock:
            self._outgoing[worker] = _Outgoing(None)
        self._wake.set()

    # --- on the thread ---------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stopping:
            self.turned_at = time.monotonic()
            try:
                self._exchange()
            except Exception as error:
                self.failures += 1
                expected = isinstance(error, DatabaseError | InterfaceError | OSError)
                if not self._away or not expected:
                    logger.warning(
                        "no exchange with the fleet's database; the last wanted state stands", exc_info=error
                    )
                self._away = True
                self._wake.clear()
            else:
                if self._away:
                    logger.info("the exchange with the fleet's database works again")
                self._away = False
            self._wake.wait(self._timing.fleet_s)
            # Even changes at every moment are written a few times a second at most.
            time.sleep(0.1)
            self._wake.clear()
        connections.close_all()  # this thread's

    def _exchange(self) -> None:
        close_old_connections()
        if self._agent_age_s() < 10.0:  # an agent whose loop hangs looks after nothing, and must not look alive
            services.node_seen(name=self._node, hostname=socket.gethostname(), cores=processes.cores())
        wanted = self._read_wanted()
        if wanted is not None:
            self.read_at = time.monotonic()
            self._changed(wanted)
        for name in list(self._outgoing):
            try:
                self._write(name)
            except (OperationalError, InterfaceError):
                with self._lock:  # should it be this one's fault alone, the others come first the next time
                    self._outgoing[name] = self._outgoing.pop(name)
                raise  # the database is away: so it is for the others
            except Exception:  # one that cannot be written must not hold up those behind it
                self.failures += 1
                logger.exception("the report of %s could not be written", name)

    def _read_wanted(self) -> WantedState | None:
        try:
            rows = selectors.node_wanted(self._node)
        except UnknownNode:
            return None
        # The rows are empty both where nothing is wanted and where the node shall be emptied at once.
        node = None if rows else selectors.nodes().filter(name=self._node).first()
        workers = tuple(
            Wanted(
                name=row.name,
                role=row.role,
                deployment=row.deployment,
                revision=row.revision,
                model=row.model,
                model_path=str(self._home.models / row.model),
                engine=row.engine,
                device=row.device,
                drain_deadline_s=row.drain_deadline_s,
            )
            for row in rows
        )
        return WantedState(workers=workers, stopping=node is not None and node.stopped_at is not None)

    def _write(self, name: str) -> None:
        with self._lock:
            entry = self._outgoing[name]
            report, written, written_at = entry.report, entry.written, entry.written_at
        if report is None:
            services.worker_removed(worker_name=name)
            with self._lock:
                if self._outgoing.get(name) is entry and entry.report is None:
                    del self._outgoing[name]
            return
        if report == written and time.monotonic() - written_at < self._timing.report_again_s:
            return
        try:
            services.worker_observed(
                worker_name=report.worker,
                state=WorkerStatus(report.state.value),
                reason=report.reason,
                epoch=report.epoch,
                pid=report.pid,
                endpoint=report.endpoint,
                restarts=report.restarts,
                next_check=report.next_check,
                deadline=report.deadline,
            )
        except InvalidTransition as error:
            self.failures += 1
            logger.warning("a report was not taken: %s", error)
        with self._lock:
            entry.written, entry.written_at = report, time.monotonic()
