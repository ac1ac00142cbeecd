"""Wanted against running: one turn looks at each worker, does at most one thing about it, and says how it is.

Runs on the agent's event loop; knows neither Django nor Celery. What a restart of the agent must not forget is on disk
(`records`).
"""

from __future__ import annotations

import logging
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from workers.kvstore.settings import StoreSettings
from workers.node import processes
from workers.node.endpoints import NodeNetwork
from workers.node.probe import Probe
from workers.node.records import ProcessRecord, Records, Wanted, WantedState
from workers.node.reports import Report, State, instant, of_process, trouble
from workers.node.timing import Timing
from workers.protocol import Address, WorkerState
from workers.serving.errors import EXIT_BAD_SPEC, EXIT_DRAINED
from workers.spec import WorkerSpec

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Draining:
    """A process that was told to stop: told once more at `until`, killed at `kill_at` (monotonic)."""

    until: float
    kill_at: float
    told_again: bool = False


@dataclass(slots=True)
class Managed:
    """One worker on this node."""

    name: str
    wanted: Wanted | None = None
    record: ProcessRecord | None = None
    popen: subprocess.Popen[bytes] | None = None
    """Of a process that this agent started; None for an adopted one."""
    probe: Probe | None = None
    draining: Draining | None = None
    failures: int = 0
    start_at: float = 0.0
    """Monotonic: not before."""
    ended: str = ""
    """How the last process ended."""
    ready_since: float | None = None
    restarts: int = 0
    known_since: float = 0.0
    """Unix seconds since which this agent has known the process: it started it, or adopted it then."""


@dataclass(slots=True)
class Supervisor:
    node: str
    records: Records
    valkey_url: str
    report: Callable[[Report], None]
    removed: Callable[[str], None]
    """The process is gone and nothing is wanted of it."""
    timing: Timing = field(default_factory=Timing)
    command: Sequence[str] = processes.SERVE
    store: StoreSettings | None = None
    """The KV store that this node's workers share with all others."""
    network: NodeNetwork = field(default_factory=NodeNetwork)
    workers: dict[str, Managed] = field(default_factory=dict)
    faults: int = 0
    """Turns of one worker that ended with an exception; the others went on."""
    turned_at: float | None = None
    """Monotonic time of the last turn's end."""

    def adopt(self) -> None:
        """Take over what an agent before this one left running. Nothing is restarted."""
        for name, record in processes.running(self.records.home):
            managed = self.workers.setdefault(name, Managed(name))
            managed.record, managed.restarts, managed.known_since = record, record.restarts, time.time()
            address = Address(worker=name, epoch=record.epoch)
            managed.probe = Probe(address, record.local or record.endpoint, self.node)
            self._keep(name, record)
            logger.info("adopted %s, epoch %d, process %d", name, record.epoch, record.pid)

    def turn(self, state: WantedState) -> None:
        self._excuse_own_stall()
        wanted = {worker.name: worker for worker in state.workers}
        share = max(1, processes.cores() // max(1, len(wanted)))
        for name in sorted(wanted.keys() | self.workers.keys()):
            managed = self.workers.setdefault(name, Managed(name))
            managed.wanted = wanted.get(name)
            try:
                self._turn(managed, stopping=state.stopping, threads=share)
            except Exception:
                self.faults += 1
                logger.exception("worker %s could not be looked after; trying again", name)
                managed.start_at = max(managed.start_at, time.monotonic() + self.timing.back_off_s)
        self.turned_at = time.monotonic()

    def _excuse_own_stall(self) -> None:
        """While this process was stopped or starved it heard nobody: that is no silence of the workers (lesson 2)."""
        if self.turned_at is None:
            return
        stall = time.monotonic() - self.turned_at - self.timing.turn_s
        if stall > max(1.0, self.timing.turn_s):
            logger.warning("the agent stood still for %.1f s; its workers' silence does not count", stall)
            for managed in self.workers.values():
                if managed.probe is not None:
                    managed.probe.excuse(stall)

    def close(self) -> None:
        """Leave every process as it is."""
        for managed in self.workers.values():
            if managed.probe is not None:
                managed.probe.close()

    @property
    def running(self) -> int:
        return sum(managed.record is not None for managed in self.workers.values())

    # --- one worker ------------------------------------------------------------------------------------------

    def _keep(self, name: str, record: ProcessRecord) -> None:
        """On disk, for an agent after this one. A full disk is no reason to look after the process any less."""
        try:
            self.records.write_process(name, record)
        except OSError as error:
            self.faults += 1
            logger.error("the record of %s could not be written: %s", name, error)

    def _turn(self, managed: Managed, *, stopping: bool, threads: int) -> None:
        record = managed.record
        if record is not None and not self._alive(managed, record):
            self._gone(managed, record)
            record = None
        if record is None:
            if managed.wanted is None:
                self._forget(managed)
            elif time.monotonic() >= managed.start_at:
                self._start(managed, managed.wanted, threads)
            else:
                self._report_waiting(managed)
        elif record.draining_since is not None or managed.wanted is None or managed.wanted != record.wanted:
            self._stop(managed, record, stopping=stopping)
        else:
            self._watch(managed, record)

    def _alive(self, managed: Managed, record: ProcessRecord) -> bool:
        if managed.popen is not None:
            return managed.popen.poll() is None  # reaps it
        return processes.alive(record)

    def _start(self, managed: Managed, wanted: Wanted, threads: int) -> None:
        name = managed.name
        processes.rotate(self.records.home.worker_log(name))
        if managed.ended:
            managed.restarts += 1
        epoch = self.records.next_epoch(name)
        taken = [other.record.endpoint for other in self.workers.values() if other.record is not None]
        endpoint, network = self.network.place(name, self.records.home.sockets, taken)
        spec = WorkerSpec(
            address=Address(worker=name, epoch=epoch),
            role=wanted.role,
            node=self.node,
            deployment=wanted.deployment,
            revision=wanted.revision,
            model=wanted.model,
            model_path=wanted.model_path,
            engine=wanted.engine,
            endpoint=endpoint,
            network=network,
            valkey_url=self.valkey_url,
            device=wanted.device,
            threads=threads,
            drain_deadline_s=wanted.drain_deadline_s,
            store=self.store,
        )
        path = self.records.write_spec(spec)
        managed.popen = processes.spawn(self.command, path, self.records.home.worker_log(name))
        try:
            record = ProcessRecord(
                pid=managed.popen.pid,
                create_time=processes.create_time(managed.popen.pid),
                epoch=epoch,
                endpoint=spec.endpoint,
                local=network.local,
                wanted=wanted,
                started_at=time.time(),
                restarts=managed.restarts,
            )
            self.records.write_process(name, record)
        except OSError:  # a full disk: the next turn would start another one beside it
            managed.popen.kill()
            managed.popen.wait()
            managed.popen = None
            raise
        managed.record, managed.ready_since, managed.known_since = record, None, record.started_at
        managed.probe = Probe(spec.address, network.local or spec.endpoint, self.node)
        logger.info("started %s, epoch %d, process %d, %d threads", name, epoch, record.pid, threads)
        self.report(of_process(name, record, managed.probe, None, self.timing))

    def _gone(self, managed: Managed, record: ProcessRecord) -> None:
        """The process ended: how, and when the next may start."""
        code = managed.popen.returncode if managed.popen is not None else None
        managed.ended = processes.how_it_ended(code, self.records.home.worker_log(managed.name), record.epoch)
        expected = record.draining_since is not None or code == EXIT_DRAINED
        if managed.ready_since is not None and time.monotonic() - managed.ready_since > self.timing.steady_s:
            managed.failures = 0
        if not expected:
            managed.failures += 1
        if code == EXIT_BAD_SPEC:
            managed.failures = max(managed.failures, self.timing.crash_loop)
        delay = 0.0 if expected else self.timing.back_off(managed.failures)
        managed.start_at = time.monotonic() + delay
        logger.log(
            logging.INFO if expected else logging.WARNING,
            "%s, epoch %d, process %d ended (%s)", managed.name, record.epoch, record.pid, managed.ended,
        )  # fmt: skip
        if managed.probe is not None:
            managed.probe.close()
        self.records.forget_process(managed.name)
        managed.record = managed.popen = managed.probe = managed.draining = managed.ready_since = None

    def _forget(self, managed: Managed) -> None:
        del self.workers[managed.name]
        self.removed(managed.name)

    def _report_waiting(self, managed: Managed) -> None:
        failed = managed.failures >= self.timing.crash_loop
        at = time.time() + managed.start_at - time.monotonic()
        times = f", {managed.failures} times in a row" if managed.failures > 1 else ""
        self.report(
            Report(
                worker=managed.name,
                state=State.FAILED if failed else State.PENDING,
                reason=f"it ended ({managed.ended}){times}; it is started again",
                epoch=self.records.last_epoch(managed.name),
                pid=None,
                endpoint="",
                restarts=managed.restarts,
                next_check=instant(at + 1),
            )
        )

    def _stop(self, managed: Managed, record: ProcessRecord, *, stopping: bool) -> None:
        """SIGTERM drains; past the deadline SIGTERM again (end now, tell the clients); then SIGKILL."""
        now, timing = time.monotonic(), self.timing
        allowed = record.wanted.drain_deadline_s
        if stopping:
            allowed = min(allowed, timing.stop_drain_s)
        if managed.draining is None:
            if record.draining_since is None:
                processes.send(record, signal.SIGTERM)
                record.draining_since = time.time()
                self._keep(managed.name, record)
                logger.info("draining %s, epoch %d, %.0f s at most", managed.name, record.epoch, allowed)
            begun = now - max(0.0, time.time() - record.draining_since)  # perhaps by the agent before this one
            until = begun + allowed + (0.0 if stopping else timing.drain_grace_s)
            managed.draining = Draining(until, until + timing.drain_grace_s)
        draining = managed.draining
        if stopping and draining.until > now + allowed:
            draining.until, draining.kill_at = now + allowed, now + allowed + timing.drain_grace_s
        if now >= draining.kill_at:
            logger.warning("%s, epoch %d does not stop: SIGKILL", managed.name, record.epoch)
            processes.send(record, signal.SIGKILL)
        elif now >= draining.until and not draining.told_again:
            draining.told_again = True
            processes.send(record, signal.SIGTERM)
        why = "not wanted any more" if managed.wanted is None else "replaced by another specification"
        end = instant(time.time() + draining.kill_at - now)
        self.report(
            Report(
                worker=managed.name,
                state=State.DRAINING,
                reason=why,
                epoch=record.epoch,
                pid=record.pid,
                endpoint=record.endpoint,
                restarts=record.restarts,
                deadline=end,
            )
        )

    def _watch(self, managed: Managed, record: ProcessRecord) -> None:
        assert managed.probe is not None
        unheard = managed.popen is None and managed.probe.status is None
        if unheard and time.time() - managed.known_since <= self.timing.start_s:
            return  # just adopted: nothing is known that the agent before this one has not reported
        found = trouble(managed.probe, self.timing)
        status = managed.probe.status
        self.report(of_process(managed.name, record, managed.probe, found, self.timing))
        ready = found is None and status is not None and status.state is WorkerState.READY
        if not ready:
            managed.ready_since = None
        elif managed.ready_since is None:
            managed.ready_since = time.monotonic()
        why = self._hopeless(managed, record, found.since if found else None)
        if why:
            logger.error("%s, epoch %d: %s; SIGKILL", managed.name, record.epoch, why)
            processes.send(record, signal.SIGKILL)

    def _hopeless(self, managed: Managed, record: ProcessRecord, trouble_since: float | None) -> str:
        """Why the process is given up; empty while there is hope."""
        assert managed.probe is not None
        status, now = managed.probe.status, time.time()
        if trouble_since is not None and now - trouble_since > self.timing.hung_s:
            return f"no sign of life for {self.timing.hung_s:.0f} s"
        if status is None and now - managed.known_since > self.timing.start_s:
            return f"it did not greet within {self.timing.start_s:.0f} s"
        if status is not None and status.state is WorkerState.LOADING and now - record.started_at > self.timing.load_s:
            return f"it did not load within {self.timing.load_s:.0f} s"
        return ""
