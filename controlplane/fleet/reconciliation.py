"""Reconciliation: rows of workers follow what deployments want. Level-triggered, idempotent, one at a time.

Started by events (tasks sent on commit) and by a periodic scan, under a PostgreSQL advisory lock. It plans rows;
processes are the business of the node agents, who read the rows.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from django.db import DatabaseError, connection, transaction
from django.utils import timezone

from controlplane.accounts.permissions import SYSTEM
from controlplane.audit.services import record
from controlplane.fleet.assignment import choose_node
from controlplane.fleet.conditions import deployment_refresh
from controlplane.fleet.losses import find_losses
from controlplane.fleet.models import Deployment, Node, Pool, Worker
from controlplane.fleet.selectors import NODE_LIVE_S
from controlplane.fleet.signals import nudge_node
from controlplane.fleet.statuses import DeploymentState, Desired, WorkerStatus

LOCK: Final = 0x6A11E002
LOCK_TIMEOUT_MS: Final = 5_000
CHECK_S: Final = 5.0
PLACE_DEADLINE_S: Final = 60.0
GONE_S: Final = 600.0
"""A retired worker of a node that was not seen for this long is forgotten (its agent stops it if it comes back)."""

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Reconciled:
    """What one run did, as names of workers, for logs and tests."""

    created: list[str] = field(default_factory=list)
    placed: list[str] = field(default_factory=list)
    retired: list[str] = field(default_factory=list)
    deleted: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    deployments_deleted: list[str] = field(default_factory=list)
    frozen: str = ""
    """Why no worker is given up, where that is so."""
    busy: bool = False
    """Another run held the lock past our patience; it, or the next scan, does the work."""


def reconcile(*, now: datetime | None = None) -> Reconciled:
    """Bring the rows to what is wanted. Safe to call at any time, from any process."""
    done = Reconciled()
    with transaction.atomic():
        if not _lock():
            done.busy = True
            return done
        _Run(now or timezone.now(), done).run()
    return done


def _lock() -> bool:
    """The advisory lock, until the transaction ends; False when it is held by another for longer than we wait."""
    try:
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute(f"SET LOCAL lock_timeout = {LOCK_TIMEOUT_MS}")
            cursor.execute("SELECT pg_advisory_xact_lock(%s)", [LOCK])
            cursor.execute("SET LOCAL lock_timeout = 0")
    except DatabaseError as error:
        if getattr(error.__cause__, "sqlstate", "") != "55P03":  # lock_not_available
            raise
        return False
    return True


class _Run:
    """One reconciliation over rows that are read once, worker rows locked."""

    def __init__(self, now: datetime, done: Reconciled) -> None:
        self.now = now
        self.done = done
        self.nodes = list(Node.objects.select_related("profile").order_by("name"))
        self.workers = list(
            Worker.objects.select_for_update(of=("self",))
            .select_related("pool__revision__deployment", "node")
            .order_by("name")
        )
        self.names = {worker.name for worker in self.workers}
        self.touched: set[str] = set()

    def run(self) -> None:
        losses = find_losses(self.workers, self.now)
        self.done.frozen = losses.frozen
        for worker, reason in losses.lost:
            self._lose(worker, reason)
        deployments = list(
            Deployment.objects.select_for_update(of=("self",)).select_related("revision").order_by("name")
        )
        for deployment in deployments:
            self._size(deployment)
        for worker in self.workers:
            if worker.node is None and worker.desired == Desired.RUNNING:
                self._place(worker)
        self._sweep_retired()
        for deployment in deployments:
            self._conclude(deployment)
        for node in sorted(self.touched):
            nudge_node(node)

    # --- sizes ------------------------------------------------------------------------------------------------

    def _size(self, deployment: Deployment) -> None:
        """As many wanted workers per pool as replicas; those of other revisions go."""
        deleting = deployment.state == DeploymentState.DELETING
        mine = [w for w in self.workers if w.pool.revision.deployment_id == deployment.pk and self._wanted(w)]
        for pool in Pool.objects.filter(revision__deployment=deployment).select_related("revision").order_by("role"):
            current = pool.revision_id == deployment.revision_id and not deleting
            target = pool.replicas if current else 0
            here = [worker for worker in mine if worker.pool_id == pool.pk]
            # A lost worker is replaced where that is possible; until then it counts, and may simply come back.
            lost = [worker for worker in here if worker.state == WorkerStatus.LOST]
            replaceable = len(lost) if self._live_nodes() else 0
            for _ in range(target - len(here) + replaceable):
                self._create(pool, deployment)
            replaced = lost[: min(replaceable, len(lost))]
            surplus = len(here) - len(replaced) - target
            for worker in [*replaced, *self._least_useful(here, replaced)[: max(0, surplus)]]:
                self._retire(worker, f"{worker.reason}; replaced" if worker in replaced else "no longer wanted")

    def _live_nodes(self) -> list[Node]:
        limit = self.now - timedelta(seconds=NODE_LIVE_S)
        return [node for node in self.nodes if node.last_seen >= limit and node.stopped_at is None]

    @staticmethod
    def _wanted(worker: Worker) -> bool:
        return worker.desired == Desired.RUNNING

    @staticmethod
    def _least_useful(workers: list[Worker], excluded: list[Worker]) -> list[Worker]:
        """Whom to stop first: not placed, then not serving, then the youngest name."""
        rest = sorted((w for w in workers if w not in excluded), key=lambda w: (len(w.name), w.name), reverse=True)
        return sorted(rest, key=lambda w: (w.node_id is not None, w.state == WorkerStatus.READY))

    def _create(self, pool: Pool, deployment: Deployment) -> None:
        number = 0
        while (name := f"{deployment.name}-{pool.role}-{number}") in self.names:
            number += 1
        worker = Worker(
            name=name,
            pool=pool,
            reason="waiting for a node",
            since=self.now,
            next_check=self.now + timedelta(seconds=CHECK_S),
            deadline=self.now + timedelta(seconds=PLACE_DEADLINE_S),
        )
        worker.full_clean()
        worker.save()
        self.names.add(name)
        self.workers.append(worker)
        self.done.created.append(name)

    def _retire(self, worker: Worker, reason: str) -> None:
        worker.desired = Desired.STOPPED
        worker.reason = reason
        worker.save(update_fields=["desired", "reason"])
        self.done.retired.append(worker.name)
        if worker.node is not None:
            self.touched.add(worker.node.name)

    # --- places -----------------------------------------------------------------------------------------------

    def _place(self, worker: Worker) -> None:
        node, reason = choose_node(worker, self._live_nodes(), self.nodes, self.workers)
        if node is None:
            if worker.reason != reason:
                worker.reason, worker.next_check = reason, self.now + timedelta(seconds=CHECK_S)
                worker.save(update_fields=["reason", "next_check"])
            return
        worker.node = node
        worker.transition(
            WorkerStatus.PENDING,
            reason=f"waiting for the agent of node {node.name} to start it",
            now=self.now,
            next_check=self.now + timedelta(seconds=CHECK_S),
            deadline=self.now + timedelta(seconds=PLACE_DEADLINE_S),
        )
        worker.save()
        self.done.placed.append(worker.name)
        self.touched.add(node.name)

    def _lose(self, worker: Worker, reason: str) -> None:
        worker.transition(
            WorkerStatus.LOST,
            reason=reason,
            now=self.now,
            next_check=self.now + timedelta(seconds=CHECK_S),
            deadline=self.now + timedelta(seconds=GONE_S),
        )
        worker.save(update_fields=["state", "reason", "since", "next_check", "deadline"])
        record(
            actor=SYSTEM, action="worker.lost", target=f"worker:{worker.name}", before=None, after=None, reason=reason
        )
        self.done.lost.append(worker.name)

    # --- ends -------------------------------------------------------------------------------------------------

    def _sweep_retired(self) -> None:
        """Rows of retired workers that never ran, or whose node is long gone. Others go when their agent says so."""
        for worker in list(self.workers):
            if worker.desired != Desired.STOPPED:
                continue
            gone = worker.node is not None and worker.node.seen_age_s(self.now) > GONE_S
            if worker.node is None or gone:
                worker.delete()
                self.workers.remove(worker)
                self.done.deleted.append(worker.name)

    def _conclude(self, deployment: Deployment) -> None:
        left = [worker for worker in self.workers if worker.pool.revision.deployment_id == deployment.pk]
        if deployment.state == DeploymentState.DELETING and not left:
            self.done.deployments_deleted.append(deployment.name)
            deployment.delete()
            return
        deployment_refresh(deployment_id=deployment.pk, now=self.now)
