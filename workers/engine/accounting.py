"""What an engine holds at this moment, in numbers, and whether they add up."""

from __future__ import annotations

from collections.abc import Iterable

from workers.engine.api import EngineStats
from workers.engine.blocks import BlockPool
from workers.engine.forward import ForwardPasses
from workers.engine.registry import Registry
from workers.engine.scheduler import Scheduler
from workers.engine.sequence import BLOCKLESS, Phase
from workers.engine.suspension import Suspension


def statistics(
    scheduler: Scheduler, requests: Registry, pool: BlockPool, forward: ForwardPasses, suspension: Suspension
) -> EngineStats:
    return EngineStats(
        running=scheduler.running,
        waiting=len(scheduler.waiting),
        waiting_tokens=sum(s.left for s in (*scheduler.waiting, *scheduler.prefilling)),
        held=requests.count(Phase.HELD),
        blocks_total=pool.total,
        blocks_used=pool.used,
        blocks_cached=pool.cached,
        steps=forward.steps,
        computed_tokens=forward.computed_tokens,
        preemptions=suspension.count,
        rows_saved=forward.rows_saved,
    )


def check(scheduler: Scheduler, requests: Registry, pool: BlockPool, pinned: Iterable[list[int]]) -> None:
    """Raise AssertionError unless every block is free, cached, or referenced exactly as often as counted (`pinned`:
    by others than requests), and every seat free or one request's.
    """
    sequences = list(requests)
    scheduler.seats.check([s.seat for s in sequences if s.seat is not None])
    pool.check((*(s.slots for s in sequences), *pinned), sum(s.reserved for s in sequences))
    for sequence in sequences:
        assert not (sequence.phase in BLOCKLESS and sequence.slots), f"a {sequence.phase.value} request holds blocks"
