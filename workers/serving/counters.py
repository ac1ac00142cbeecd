"""What a worker counts, and the snapshot and status made of it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from workers.engine.api import EngineStats, ScheduledEvent
from workers.identity import CacheIdentity
from workers.protocol import Role, Status, WorkerState
from workers.snapshots import Histogram, WorkerSnapshot
from workers.spec import WorkerSpec

NO_STATS = EngineStats(
    running=0, waiting=0, waiting_tokens=0, held=0, blocks_total=0, blocks_used=0, blocks_cached=0,
    steps=0, computed_tokens=0, preemptions=0,
)  # fmt: skip
"""Of a worker that is still loading."""


@dataclass(slots=True)
class Counters:
    """Cumulative since the process's start. Hits and misses are counted where prefill is scheduled and nowhere else."""

    block_tokens: int = 1
    hit_tokens: int = 0
    miss_tokens: int = 0
    output_tokens: int = 0
    store_hit_tokens: int = 0
    recomputed_tokens: int = 0
    short_tokens: int = 0
    finished: Counter[str] = field(default_factory=Counter)
    events: Counter[str] = field(default_factory=Counter)
    queue_s: Histogram = field(default_factory=Histogram)
    prefill_s: Histogram = field(default_factory=Histogram)
    transfer_s: Histogram = field(default_factory=Histogram)

    def scheduled(self, event: ScheduledEvent) -> None:
        """Once per request, when its prefill starts."""
        self.hit_tokens += event.pool_hit_tokens + event.store_hit_tokens
        self.store_hit_tokens += event.store_hit_tokens
        self.recomputed_tokens += event.recomputed_tokens
        self.miss_tokens += event.miss_tokens
        if event.pool_hit_tokens + event.store_hit_tokens + event.miss_tokens < self.block_tokens:
            self.short_tokens += event.miss_tokens
        self.queue_s.observe(event.queue_s)


@dataclass(slots=True, frozen=True, kw_only=True)
class Moment:
    """The gauges of one instant."""

    state: WorkerState
    reason: str
    stats: EngineStats
    step_age_s: float
    waiting_here: int
    """Requests that wait outside the engine: for their prefill worker, or for room."""
    transfers: int


def status(moment: Moment) -> Status:
    return Status(
        state=moment.state,
        reason=moment.reason,
        step_age_s=moment.step_age_s,
        running=moment.stats.running,
        waiting=moment.stats.waiting + moment.waiting_here,
        waiting_tokens=moment.stats.waiting_tokens,
        blocks_total=moment.stats.blocks_total,
        blocks_used=moment.stats.blocks_used,
        blocks_cached=moment.stats.blocks_cached,
        transfers=moment.transfers,
    )


def snapshot(
    spec: WorkerSpec,
    counters: Counters,
    moment: Moment,
    *,
    seq: int,
    step_s: Histogram,
    transferred_blocks: int,
    skipped_blocks: int,
    gauges: dict[str, float],
    store_troubles: dict[str, str],
    cache_identity: CacheIdentity | None,
) -> WorkerSnapshot:
    return WorkerSnapshot(
        address=spec.address,
        role=Role(spec.role),
        node=spec.node,
        deployment=spec.deployment,
        revision=spec.revision,
        model=spec.model,
        seq=seq,
        state=moment.state,
        running=moment.stats.running,
        waiting=moment.stats.waiting + moment.waiting_here,
        waiting_tokens=moment.stats.waiting_tokens,
        blocks_total=moment.stats.blocks_total,
        blocks_used=moment.stats.blocks_used,
        blocks_cached=moment.stats.blocks_cached,
        transfers=moment.transfers,
        step_age_s=moment.step_age_s,
        steps=moment.stats.steps,
        hit_tokens=counters.hit_tokens,
        miss_tokens=counters.miss_tokens,
        computed_tokens=moment.stats.computed_tokens,
        output_tokens=counters.output_tokens,
        transferred_blocks=transferred_blocks,
        transfer_skipped_blocks=skipped_blocks,
        preemptions=moment.stats.preemptions,
        finished=dict(counters.finished),
        queue_s=counters.queue_s,
        prefill_s=counters.prefill_s,
        step_s=step_s,
        transfer_s=counters.transfer_s,
        gauges=gauges,
        events=dict(counters.events),
        store_hit_tokens=counters.store_hit_tokens,
        recomputed_tokens=counters.recomputed_tokens,
        short_tokens=counters.short_tokens,
        rows_saved=list(moment.stats.rows_saved),
        store_troubles=store_troubles,
        cache_identity=cache_identity,
    )
