"""Rows of the fleet as JSON, for the API and the commands. No queries beyond what the selectors loaded."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.utils import timezone

from controlplane.fleet.models import Deployment, Node, Worker


def _time(value: datetime | None) -> str | None:
    return None if value is None else value.isoformat()


def worker_json(worker: Worker) -> dict[str, Any]:
    revision = worker.pool.revision
    return {
        "name": worker.name,
        "deployment": revision.deployment.name,
        "revision": revision.hash,
        "role": worker.pool.role,
        "node": worker.node.name if worker.node else None,
        "desired": worker.desired,
        "state": worker.state,
        "reason": worker.reason,
        "since": _time(worker.since),
        "next_check": _time(worker.next_check),
        "deadline": _time(worker.deadline),
        "epoch": worker.epoch,
        "pid": worker.pid,
        "endpoint": worker.endpoint,
        "restarts": worker.restarts,
        "observed_age_s": _age(worker.observed_at),
    }


def _age(at: datetime | None) -> float | None:
    return None if at is None else round(max(0.0, (timezone.now() - at).total_seconds()), 1)


def node_json(node: Node) -> dict[str, Any]:
    return {
        "name": node.name,
        "hostname": node.hostname,
        "cores": node.cores,
        "profile": node.profile.name,
        "device": node.profile.device,
        "cards": node.profile.cards_per_node,
        "price_micro_usd_per_card_hour": node.profile.price_micro_usd_per_card_hour,
        "last_seen_age_s": _age(node.last_seen),
        "stopped_at": _time(node.stopped_at),
        "stopped_reason": node.stopped_reason,
        "workers": [worker.name for worker in node.workers.all()],
    }


def deployment_json(deployment: Deployment) -> dict[str, Any]:
    revision = deployment.revision
    pools = list(revision.pools.all()) if revision else []
    return {
        "name": deployment.name,
        "model": deployment.model_name,
        "aliases": deployment.aliases,
        "state": deployment.state,
        "reason": deployment.reason,
        "since": _time(deployment.since),
        "next_check": _time(deployment.next_check),
        "deadline": _time(deployment.deadline),
        "revision": {"number": revision.number, "hash": revision.hash, "spec": revision.spec} if revision else None,
        "pools": [
            {
                "role": pool.role,
                "replicas": pool.replicas,
                "ranks": pool.ranks,
                "workers": [{"name": worker.name, "state": worker.state} for worker in pool.workers.all()],
            }
            for pool in pools
        ],
    }
