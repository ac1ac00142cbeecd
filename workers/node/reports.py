"""What is said of a worker: the state, and why. Pure functions of what the agent sees."""

from __future__ import annotations

import enum
import time
from dataclasses import dataclass
from datetime import UTC, datetime

from workers.node.probe import Probe
from workers.node.records import ProcessRecord
from workers.node.timing import Timing
from workers.protocol import WorkerState


class State(enum.StrEnum):
    """Names of `controlplane.fleet.statuses.WorkerStatus`."""

    PENDING = "pending"
    STARTING = "starting"
    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    worker: str
    state: State
    reason: str
    epoch: int
    pid: int | None
    endpoint: str
    restarts: int
    next_check: datetime | None = None
    deadline: datetime | None = None


def instant(unix: float) -> datetime:
    """Whole seconds, so that a report that says the same is equal."""
    return datetime.fromtimestamp(int(unix), UTC)


@dataclass(frozen=True, slots=True)
class Trouble:
    """A process that runs and does not answer, since `since` (unix seconds)."""

    what: str
    since: float


def trouble(probe: Probe, timing: Timing) -> Trouble | None:
    """Whether the worker is silent, or its engine's loop hangs. Loading has a deadline of its own."""
    silence = probe.silence_s
    if silence is None or probe.status is None:
        return None
    loading = probe.status.state is WorkerState.LOADING
    if silence > (timing.loading_silent_s if loading else timing.silent_s):
        return Trouble("it does not answer", time.time() - silence)
    if not loading and probe.status.step_age_s > timing.silent_s:
        return Trouble("its engine's loop hangs", time.time() - probe.status.step_age_s - silence)
    return None


def of_process(name: str, record: ProcessRecord, probe: Probe, found: Trouble | None, timing: Timing) -> Report:
    """A process that shall run and does."""

    def report(state: State, reason: str, deadline: float | None = None) -> Report:
        return Report(
            worker=name,
            state=state,
            reason=reason,
            epoch=record.epoch,
            pid=record.pid,
            endpoint=record.endpoint,
            restarts=record.restarts,
            deadline=None if deadline is None else instant(deadline),
        )

    status = probe.status
    if found is not None:
        end = found.since + timing.hung_s
        since = instant(round(found.since)).strftime("%H:%M:%S")
        reason = f"{found.what} since {since} UTC; it is killed and started again if that lasts"
        return report(State.PENDING, reason, end)
    if status is None:
        return report(State.STARTING, "the process was started", record.started_at + timing.start_s)
    match status.state:
        case WorkerState.LOADING:
            return report(State.LOADING, status.reason, record.started_at + timing.load_s)
        case WorkerState.DRAINING:
            return report(State.DRAINING, "it was told to stop, not by its agent")
        case WorkerState.READY:
            return report(State.READY, "")
