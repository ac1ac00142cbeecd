"""Who is lost. Losing most of at least five workers at once is taken for our own fault until it is explained."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from controlplane.accounts.permissions import SYSTEM
from controlplane.audit.services import record
from controlplane.fleet.models import EvictionFreeze, Worker
from controlplane.fleet.selectors import NODE_LIVE_S
from controlplane.fleet.statuses import WorkerStatus

FREEZE_FROM: Final = 5
"""With fewer workers than this nothing is frozen: half of two is one ordinary failure."""


@dataclass(slots=True)
class Losses:
    lost: list[tuple[Worker, str]] = field(default_factory=list)
    """Workers to be given up, and why."""
    frozen: str = ""


def find_losses(workers: Sequence[Worker], now: datetime) -> Losses:
    """Workers with a process on a node that was not seen for NODE_LIVE_S, unless that is most of them.

    Writes the freeze and its end. A freeze that an operator confirmed does not hold back anything.
    """
    running = [worker for worker in workers if worker.status in WorkerStatus.with_process()]
    suspects = [worker for worker in running if worker.node is not None and worker.node.seen_age_s(now) > NODE_LIVE_S]
    freeze = EvictionFreeze.objects.select_for_update().first()
    if len(running) >= FREEZE_FROM and 2 * len(suspects) > len(running):
        reason = (
            f"{len(suspects)} of {len(running)} running workers were not seen; none is given up until that is explained"
        )
        if freeze is None:
            freeze = EvictionFreeze(since=now, reason=reason)
            freeze.full_clean()
            freeze.save()
            record(
                actor=SYSTEM,
                action="eviction_freeze.start",
                target="fleet:evictions",
                before=None,
                after={"suspects": [worker.name for worker in suspects]},
                reason=reason,
            )
        if freeze.confirmed_at is None:
            return Losses(frozen=freeze.reason)
    elif freeze is not None and (not suspects or freeze.confirmed_at is not None):
        record(
            actor=SYSTEM,
            action="eviction_freeze.end",
            target="fleet:evictions",
            before={"reason": freeze.reason},
            after=None,
        )
        freeze.delete()
    elif freeze is not None:
        return Losses(frozen=freeze.reason)  # fewer are missing, but not none: the freeze holds
    return Losses(
        lost=[
            (worker, f"its node {worker.node} was not seen for {worker.node.seen_age_s(now):.0f} s")
            for worker in suspects
            if worker.node is not None
        ]
    )
