"""The state of a deployment, derived from its workers: never from what was concluded before."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

from controlplane.fleet.models import Deployment, Pool, Worker
from controlplane.fleet.statuses import DeploymentState, Desired, WorkerStatus
from workers.protocol import Role

CHECK_S: Final = 5.0
PROGRESS_DEADLINE_S: Final = 600.0


def deployment_refresh(*, deployment_id: int, now: datetime) -> None:
    """Write the state of a deployment where it changed. Three queries."""
    deployment = Deployment.objects.filter(pk=deployment_id).first()
    if deployment is None or deployment.revision_id is None:
        return
    pools = list(Pool.objects.filter(revision_id=deployment.revision_id))
    workers = list(Worker.objects.filter(pool__revision__deployment_id=deployment_id).order_by("name"))
    state, reason = derive(deployment, pools, workers, now)
    if (state, reason) == (deployment.state, deployment.reason):
        return
    if state != deployment.state:
        deployment.since = now
        final = state in (DeploymentState.READY, DeploymentState.STOPPED)
        deployment.deadline = None if final else now + timedelta(seconds=PROGRESS_DEADLINE_S)
        deployment.next_check = None if final else now + timedelta(seconds=CHECK_S)
    deployment.state, deployment.reason = state, reason[:500]
    deployment.save(update_fields=["state", "reason", "since", "deadline", "next_check"])


def derive(
    deployment: Deployment, pools: list[Pool], workers: list[Worker], now: datetime
) -> tuple[DeploymentState, str]:
    """State and reason from the wanted sizes and the workers as they are."""
    if deployment.state == DeploymentState.DELETING:
        return DeploymentState.DELETING, f"{len(workers)} of its workers are still there"
    replicas = {Role(pool.role): pool.replicas for pool in pools}
    wanted = sum(replicas.values())
    if wanted == 0:
        return DeploymentState.STOPPED, "scaled to zero"
    if bool(replicas.get(Role.PREFILL)) != bool(replicas.get(Role.DECODE)) and not replicas.get(Role.BOTH):
        return DeploymentState.DEGRADED, "serves nothing: prefill and decode need a replica each"
    live = [worker for worker in workers if worker.desired == Desired.RUNNING]
    ready = [worker for worker in live if worker.state == WorkerStatus.READY]
    if len(ready) >= wanted:
        return DeploymentState.READY, ""
    progress = f"{len(ready)} of {wanted} workers are ready"
    waiting = [worker for worker in live if worker.state != WorkerStatus.READY]
    overdue = [worker for worker in waiting if worker.deadline is not None and worker.deadline < now]
    bad = [worker for worker in waiting if worker.state in (WorkerStatus.FAILED, WorkerStatus.LOST)]
    if bad or overdue:
        worker = (bad or overdue)[0]
        late = "" if bad else " for longer than it should be"
        return DeploymentState.DEGRADED, f"{progress}; {worker.name} is {worker.state}{late}: {worker.reason}"
    if not waiting:
        return DeploymentState.PENDING, f"{progress}; more are about to be started"
    worker = waiting[0]
    state = DeploymentState.PROGRESSING if ready or worker.state != WorkerStatus.PENDING else DeploymentState.PENDING
    return state, f"{progress}; {worker.name} is {worker.state}: {worker.reason}"
