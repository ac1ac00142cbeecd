"""A fleet as the reconciliation leaves it, and frames as the telemetry process sends them."""

from __future__ import annotations

from typing import Any

import msgspec
import redis

from controlplane.fleet.models import Deployment, HardwareProfile, Node, Pool, Revision, Worker
from controlplane.telemetry import names
from controlplane.telemetry.frames import Frame, WorkerLine

PASSWORD = "correct-horse-9"


def deployment(name: str = "smollm2", *, workers: int = 2) -> Deployment:
    profile, _ = HardwareProfile.objects.get_or_create(name="test-cpu", defaults={"card": "CPU"})
    node, _ = Node.objects.get_or_create(name="node-a", defaults={"hostname": "a", "profile": profile})
    made = Deployment.objects.create(name=name, model_name="smollm2-135m-instruct", state="ready")
    made.revision = Revision.objects.create(deployment=made, number=1, hash="a1" * 32, spec={}, created_by="test")
    made.save()
    for role in ("prefill", "decode"):
        pool = Pool.objects.create(revision=made.revision, role=role, replicas=workers)
        for index in range(workers):
            Worker.objects.create(
                name=f"{name}-{role}-{index}", pool=pool, node=node, state="loading", epoch=7, reason="reading weights"
            )
    return made


def frame(seq: int, **fields: Any) -> Frame:
    line = WorkerLine(
        worker="smollm2-decode-0",
        epoch=7,
        rank=0,
        role="decode",
        node="node-a",
        deployment="smollm2",
        revision="a1",
        model="smollm2-135m-instruct",
        state="ready",
        step_age_s=0.01,
        running=1,
        waiting=0,
        waiting_tokens=0,
        blocks_total=100,
        blocks_used=40,
        blocks_cached=20,
        transfers=0,
        tokens_per_s=12.0,
        observed_age_s=0.2,
        stale=False,
    )
    standard: dict[str, Any] = {
        "seq": seq,
        "at": 1_785_000_000.0 + seq,
        "cost_per_hour_usd": "0.24",
        "revenue_per_hour_usd": "1.5",
        "workers": [line],
    }
    return Frame(**{**standard, **fields})


def encoded(seq: int, **fields: Any) -> str:
    return msgspec.json.encode(frame(seq, **fields)).decode()


def store_frames(url: str, *numbers: int) -> None:
    """In Valkey, as the telemetry process keeps them: newest first, the newest whole beside them."""
    with redis.Redis.from_url(url) as client:
        for seq in numbers:
            client.lpush(names.FRAMES_KEY, encoded(seq, workers=[], gateways=[]))
        client.set(names.LATEST_KEY, encoded(numbers[-1]))
