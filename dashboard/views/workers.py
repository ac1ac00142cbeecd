"""Deployments, and below each the workers of its revisions, pool by pool."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from controlplane.accounts.permissions import Action
from controlplane.fleet import selectors as fleet
from controlplane.fleet.models import Deployment, EvictionFreeze, Node, Pool, Revision, Worker
from controlplane.fleet.statuses import RoleChoices, WorkerStatus
from dashboard.access import permission_required, wants_partial


@dataclass(frozen=True, slots=True)
class PoolGroup:
    pool: Pool
    workers: list[Worker]

    @property
    def ready(self) -> int:
        return sum(worker.status is WorkerStatus.READY for worker in self.workers)


@dataclass(frozen=True, slots=True)
class RevisionGroup:
    revision: Revision
    wanted: bool
    pools: list[PoolGroup]


@dataclass(frozen=True, slots=True)
class DeploymentGroup:
    deployment: Deployment
    revisions: list[RevisionGroup]
    """The wanted revision first, then older ones that still have workers."""


@dataclass(frozen=True, slots=True)
class Fleet:
    deployments: list[DeploymentGroup]
    nodes: list[Node]
    freeze: EvictionFreeze | None


def fleet_tree() -> Fleet:
    """A fixed number of queries, whatever the number of workers."""
    by_pool: dict[Pool, list[Worker]] = defaultdict(list)
    for worker in fleet.workers():
        by_pool[worker.pool].append(worker)
    return Fleet(
        deployments=[_group(deployment, by_pool) for deployment in fleet.deployments()],
        nodes=list(fleet.nodes()),
        freeze=fleet.eviction_freeze(),
    )


def _group(deployment: Deployment, by_pool: dict[Pool, list[Worker]]) -> DeploymentGroup:
    wanted = deployment.revision
    pools: dict[Revision, set[Pool]] = defaultdict(set)
    if wanted is not None:
        pools[wanted].update(wanted.pools.all())
    for pool in by_pool:
        if pool.revision.deployment_id == deployment.pk:
            pools[pool.revision].add(pool)
    ordered = sorted(pools, key=lambda revision: (revision != wanted, -revision.number))
    return DeploymentGroup(
        deployment=deployment,
        revisions=[
            RevisionGroup(
                revision=revision,
                wanted=revision == wanted,
                pools=[
                    PoolGroup(pool=pool, workers=by_pool.get(pool, [])) for pool in _shown(pools[revision], by_pool)
                ],
            )
            for revision in ordered
        ],
    )


def _shown(pools: set[Pool], by_pool: dict[Pool, list[Worker]]) -> list[Pool]:
    """Prefill before decode, as a request passes them; of the two ways to serve, not the one that is not used."""
    used = {pool for pool in pools if pool.replicas or by_pool.get(pool)}
    whole = {pool.role == RoleChoices.BOTH for pool in used}
    shown = {pool for pool in pools if pool in used or not whole or (pool.role == RoleChoices.BOTH) in whole}
    return sorted(shown, key=lambda pool: pool.role, reverse=True)


@require_safe
@never_cache
@permission_required(Action.FLEET_VIEW)
def show(request: HttpRequest) -> HttpResponse:
    template = "dashboard/partials/fleet.html" if wants_partial(request) else "dashboard/workers.html"
    return render(request, template, {"fleet": fleet_tree()})
