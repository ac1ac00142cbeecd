"""Reads of the fleet. Each makes a fixed number of queries, whatever its result's size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from django.db.models import Prefetch, QuerySet

from controlplane.fleet.errors import UnknownNode
from controlplane.fleet.models import Deployment, EvictionFreeze, Node, Pool, Worker
from controlplane.fleet.specification import RevisionSpec
from controlplane.fleet.statuses import Desired
from workers.protocol import Role
from workers.spec import EngineSettings

NODE_LIVE_S: Final = 30.0
"""A node that was seen within this long counts as living."""


@dataclass(frozen=True, slots=True)
class WantedWorker:
    """What a node's agent keeps running."""

    name: str
    role: Role
    deployment: str
    revision: str
    """Hash of the revision."""
    model: str
    engine: EngineSettings
    device: str
    drain_deadline_s: float


def node_wanted(node: str) -> list[WantedWorker]:
    """Workers that shall run on a node, by name; none while it is stopped on request. Two queries.

    Raises UnknownNode for a node that never registered: an agent keeps what it runs then, as in any error.
    """
    row = Node.objects.select_related("profile").filter(name=node).first()
    if row is None:
        raise UnknownNode(f"node {node} is not registered")
    if row.stopped_at is not None:
        return []
    rows = (
        Worker.objects.filter(node=row, desired=Desired.RUNNING)
        .select_related("pool__revision__deployment")
        .order_by("name")
    )
    return [_wanted(worker, device=row.profile.device) for worker in rows]


def _wanted(worker: Worker, *, device: str) -> WantedWorker:
    revision = worker.pool.revision
    spec = RevisionSpec.from_json(revision.spec)
    return WantedWorker(
        name=worker.name,
        role=Role(worker.pool.role),
        deployment=revision.deployment.name,
        revision=revision.hash,
        model=spec.model.name,
        engine=spec.engine,
        device=device,
        drain_deadline_s=spec.drain_deadline_s,
    )


def deployments() -> QuerySet[Deployment]:
    """By name, with revision, its pools and their workers loaded (three queries)."""
    pools = Pool.objects.order_by("role").prefetch_related(
        Prefetch("workers", queryset=Worker.objects.select_related("node").order_by("name"))
    )
    return (
        Deployment.objects.select_related("revision")
        .prefetch_related(Prefetch("revision__pools", queryset=pools))
        .order_by("name")
    )


def deployment_by_name(name: str) -> Deployment | None:
    return deployments().filter(name=name).first()


def workers(*, deployment: str | None = None) -> QuerySet[Worker]:
    """By name, with pool, revision, deployment and node loaded (one query)."""
    rows = Worker.objects.select_related("pool__revision__deployment", "node__profile").order_by("name")
    return rows if deployment is None else rows.filter(pool__revision__deployment__name=deployment)


def nodes() -> QuerySet[Node]:
    """By name, with profile and workers loaded (two queries)."""
    return (
        Node.objects.select_related("profile")
        .prefetch_related(Prefetch("workers", queryset=Worker.objects.select_related("pool").order_by("name")))
        .order_by("name")
    )


def eviction_freeze() -> EvictionFreeze | None:
    """The freeze in force, if any: then no worker is given up until it is explained or confirmed."""
    return EvictionFreeze.objects.first()


@dataclass(frozen=True, slots=True)
class NodePrice:
    """What running on a node costs: price of one card for an hour, and how many cards there are to pay for."""

    micro_usd_per_card_hour: int
    cards: int


def node_prices() -> dict[str, NodePrice]:
    """By node name. One query."""
    rows = Node.objects.values_list("name", "profile__price_micro_usd_per_card_hour", "profile__cards_per_node")
    return {name: NodePrice(micro_usd_per_card_hour=price, cards=cards) for name, price, cards in rows}
