"""Nodes, models and deployments for tests, made by the services that make the real ones."""

from __future__ import annotations

from datetime import datetime, timedelta
from itertools import count

from django.utils import timezone

from controlplane.accounts.permissions import SYSTEM
from controlplane.config import home
from controlplane.fleet import services
from controlplane.fleet.models import Deployment, Node, Worker
from controlplane.fleet.statuses import WorkerStatus
from workers.manifest import ModelManifest, write_manifest
from workers.spec import EngineSettings

_numbers = count(1)
MODEL = "tiny-model"


def model(name: str = MODEL) -> str:
    """A manifest in the store; the control plane reads no more of a model than that."""
    folder = home().models / name
    folder.mkdir(parents=True, exist_ok=True)
    write_manifest(
        folder,
        ModelManifest(
            name=name,
            family="llama",
            display_name=name,
            source="test",
            licence="Apache-2.0",
            weights_fingerprint="a" * 64,
            tokenizer_fingerprint="b" * 64,
            parameters=1,
            max_context=128,
            block_tokens=16,
            vocab_size=32,
            bos_token_id=None,
            eos_token_ids=(0,),
            chat_format="chatml",
        ),
    )
    return name


def node(name: str = "", *, cores: int = 4, seen_s_ago: float = 0.0) -> Node:
    made = services.node_seen(name=name or f"node-{next(_numbers)}", hostname="host", cores=cores)
    if seen_s_ago:
        unseen(made, seen_s_ago)
    return made


def unseen(made: Node, seconds: float) -> None:
    Node.objects.filter(pk=made.pk).update(last_seen=timezone.now() - timedelta(seconds=seconds))


def deployment(name: str = "", *, prefill: int = 1, decode: int = 1, both: int = 0) -> Deployment:
    return services.deployment_create(
        actor=SYSTEM,
        name=name or f"deployment-{next(_numbers)}",
        model=model(),
        prefill_replicas=prefill,
        decode_replicas=decode,
        both_replicas=both,
        engine=EngineSettings(),
    )


def observe(
    worker: str, state: WorkerStatus, *, epoch: int = 1, reason: str = "", deadline: datetime | None = None
) -> bool:
    return services.worker_observed(
        worker_name=worker,
        state=state,
        reason=reason,
        epoch=epoch,
        pid=100,
        endpoint=f"unix:/run/{worker}.sock",
        restarts=0,
        deadline=deadline,
    )


def all_ready(*, epoch: int = 1) -> list[str]:
    names = [worker.name for worker in Worker.objects.order_by("name")]
    for name in names:
        assert observe(name, WorkerStatus.READY, epoch=epoch)
    return names
