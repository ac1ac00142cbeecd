"""Snapshots as workers and gateways publish them."""

from __future__ import annotations

from typing import Any

from workers.protocol import Address, Role, WorkerState
from workers.snapshots import GatewaySnapshot, Histogram, WorkerSnapshot


def histogram(*seconds: float) -> Histogram:
    made = Histogram()
    for value in seconds:
        made.observe(value)
    return made


def worker(
    name: str = "w-0", *, epoch: int = 1, seq: int = 1, hit: int = 0, miss: int = 0, output: int = 0, **changes: Any
) -> WorkerSnapshot:
    fields: dict[str, Any] = {
        "address": Address(name, epoch, changes.pop("rank", 0)),
        "role": Role.BOTH,
        "node": "n1",
        "deployment": "chat",
        "revision": "r1",
        "model": "m",
        "seq": seq,
        "state": WorkerState.READY,
        "running": 1,
        "waiting": 2,
        "waiting_tokens": 30,
        "blocks_total": 100,
        "blocks_used": 10,
        "blocks_cached": 5,
        "transfers": 0,
        "step_age_s": 0.01,
        "steps": seq,
        "hit_tokens": hit,
        "miss_tokens": miss,
        "computed_tokens": miss,
        "output_tokens": output,
        "transferred_blocks": 0,
        "transfer_skipped_blocks": 0,
        "preemptions": 0,
        "finished": {},
        "queue_s": Histogram(),
        "prefill_s": Histogram(),
        "step_s": Histogram(),
        "transfer_s": Histogram(),
    }
    return WorkerSnapshot(**fields | changes)


def gateway(name: str = "g-0", *, started: int = 1, seq: int = 1, **changes: Any) -> GatewaySnapshot:
    fields: dict[str, Any] = {
        "gateway": name,
        "started": started,
        "seq": seq,
        "running": 0,
        "waiting": 0,
        "hit_tokens": 0,
        "miss_tokens": 0,
        "output_tokens": 0,
        "requests": {},
        "ttft_s": Histogram(),
        "tbt_s": Histogram(),
        "e2e_s": Histogram(),
    }
    return GatewaySnapshot(**fields | changes)
