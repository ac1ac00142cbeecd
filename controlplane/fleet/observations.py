"""What node agents report: that they live, and what became of their workers. Re-exported by `fleet.services`.

An agent speaks twice a second; a row is written only where something changed, or its age would grow past a few seconds.
"""

from __future__ import annotations

import logging
from datetime import datetime, timedelta
from typing import Final

from django.db import transaction
from django.utils import timezone

from controlplane.accounts.permissions import SYSTEM
from controlplane.audit.services import record
from controlplane.fleet.conditions import deployment_refresh
from controlplane.fleet.models import HardwareProfile, InvalidTransition, Node, Worker
from controlplane.fleet.signals import reconcile_soon
from controlplane.fleet.statuses import Desired, WorkerStatus

DEFAULT_PROFILE: Final = "generic-cpu"
SEEN_GRAIN_S: Final = 2.0
OBSERVED_GRAIN_S: Final = 5.0
CHECK_AGAIN_S: Final = 5.0
DEADLINES_S: Final = {
    WorkerStatus.PENDING: 60.0,
    WorkerStatus.STARTING: 60.0,
    WorkerStatus.LOADING: 600.0,
    WorkerStatus.DRAINING: 60.0,
    WorkerStatus.FAILED: 600.0,
    WorkerStatus.LOST: 600.0,
}
"""How long a passing state may last where the agent gives no deadline of its own."""

log = logging.getLogger(__name__)


def default_times(
    state: WorkerStatus, now: datetime, next_check: datetime | None, deadline: datetime | None
) -> tuple[datetime | None, datetime | None]:
    """A passing state always has both times; a final one has neither."""
    if state in WorkerStatus.final():
        return None, None
    return (
        next_check or now + timedelta(seconds=CHECK_AGAIN_S),
        deadline or now + timedelta(seconds=DEADLINES_S[state]),
    )


@transaction.atomic
def node_seen(*, name: str, hostname: str, cores: int) -> Node:
    """The agent of a node lives. Registers the node at its first call, with profile `generic-cpu`."""
    now = timezone.now()
    node = Node.objects.select_for_update(of=("self",)).select_related("profile").filter(name=name).first()
    if node is None:
        return _register(name=name, hostname=hostname, cores=cores, now=now)
    back = node.seen_age_s(now) > CHECK_AGAIN_S
    changed = (node.hostname, node.cores) != (hostname, cores)
    if changed or node.seen_age_s(now) >= SEEN_GRAIN_S:
        node.hostname, node.cores, node.last_seen = hostname, cores, now
        if changed:
            node.full_clean()
        node.save(update_fields=["hostname", "cores", "last_seen"])
    if back or changed:
        reconcile_soon()
    return node


def _register(*, name: str, hostname: str, cores: int, now: datetime) -> Node:
    profile, _ = HardwareProfile.objects.get_or_create(
        name=DEFAULT_PROFILE, defaults={"card": "The host's processors", "device": "cpu"}
    )
    node = Node(name=name, hostname=hostname, cores=cores, profile=profile, first_seen=now, last_seen=now)
    node.full_clean()
    node.save()
    record(
        actor=SYSTEM,
        action="node.register",
        target=f"node:{name}",
        before=None,
        after={"hostname": hostname, "cores": cores, "profile": profile.name},
    )
    reconcile_soon()
    return node


@transaction.atomic
def worker_observed(
    *,
    worker_name: str,
    state: WorkerStatus,
    reason: str,
    epoch: int,
    pid: int | None,
    endpoint: str,
    restarts: int,
    next_check: datetime | None = None,
    deadline: datetime | None = None,
) -> bool:
    """Take down what an agent sees of a worker. False where it does not count: no such worker, or of an older epoch.

    A state that is not final gets a next check and a deadline where none are given. Raises InvalidTransition.
    """
    worker = (
        Worker.objects.select_for_update(of=("self",)).select_related("pool__revision").filter(name=worker_name).first()
    )
    if worker is None:
        return False
    if epoch < worker.epoch:
        log.info("worker %s: %s of epoch %d is older than %d", worker_name, state, epoch, worker.epoch)
        return False
    now = timezone.now()
    was = worker.state
    keeps = worker.state == state and worker.epoch == epoch and worker.reason == reason[:500]
    if keeps and deadline is None:
        deadline = worker.deadline  # the same wait goes on, so its deadline does not move
    next_check, deadline = default_times(state, now, next_check, deadline)
    changed = worker.transition(state, reason=reason, now=now, next_check=next_check, deadline=deadline, epoch=epoch)
    changed |= (worker.pid, worker.endpoint, worker.restarts) != (pid, endpoint, restarts)
    stale = worker.observed_at is None or (now - worker.observed_at).total_seconds() >= OBSERVED_GRAIN_S
    if keeps and not stale:
        return True
    if changed or stale:
        worker.pid, worker.endpoint, worker.restarts, worker.observed_at = pid, endpoint, restarts, now
        worker.full_clean(validate_unique=False, validate_constraints=False, exclude={"pool", "node"})
        worker.save()
    if worker.state != was:
        deployment_refresh(deployment_id=worker.pool.revision.deployment_id, now=now)
    return True


@transaction.atomic
def worker_removed(*, worker_name: str) -> None:
    """The process of a worker is gone. A retired worker's row goes with it; any other waits to be started anew."""
    worker = (
        Worker.objects.select_for_update(of=("self",))
        .select_related("pool__revision", "node")
        .filter(name=worker_name)
        .first()
    )
    if worker is None:
        return
    now = timezone.now()
    deployment_id = worker.pool.revision.deployment_id
    if worker.desired == Desired.STOPPED:
        worker.delete()
        reconcile_soon()
    else:
        stopped = worker.node is not None and worker.node.stopped_at is not None
        state = WorkerStatus.STOPPED if stopped else WorkerStatus.PENDING
        reason = "its node is stopped on request" if stopped else "its process is gone; the agent starts another"
        next_check, deadline = default_times(state, now, None, None)
        try:
            worker.transition(state, reason=reason, now=now, next_check=next_check, deadline=deadline)
        except InvalidTransition:  # stopped already, and nobody started it since
            return
        worker.pid, worker.endpoint, worker.observed_at = None, "", now
        worker.save()
    deployment_refresh(deployment_id=deployment_id, now=now)
