"""What is known of each publishing process, and what its cumulative counters say happened since the last look.

A counter belongs to (process, epoch). A missed snapshot loses resolution, never tokens; an older epoch or a repeated
sequence number is not counted; a process that was running before we came counts from where it stands.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from controlplane.telemetry import histograms
from controlplane.telemetry.frames import TokenRates
from controlplane.telemetry.totals import Totals, summed
from workers.snapshots import GatewaySnapshot, Histogram, WorkerSnapshot

FRESH_SEQ: Final = 2
"""A process first seen with a sequence number up to this has just started: all it counted is news."""
RATE_SPAN_S: Final = 0.5
"""Two snapshots closer than this tell no rate."""


class CounterWentBack(Exception):
    """A counter is smaller than before in the same epoch: the publisher is at fault; what it says is counted anew."""


def _increase(new: int, old: int) -> int:
    if new < old:
        raise CounterWentBack
    return new - old


def _growth(new: Histogram, old: Histogram) -> list[int]:
    try:
        return histograms.difference(new.counts, old.counts)
    except ValueError as error:
        raise CounterWentBack from error


def _new_keys(new: dict[str, int], old: dict[str, int]) -> dict[str, int]:
    grown = {key: _increase(count, old.get(key, 0)) for key, count in new.items()}
    return {key: count for key, count in grown.items() if count}


@dataclass(slots=True)
class WorkerTrack:
    """One rank of one worker."""

    last: WorkerSnapshot
    received: float
    """Monotonic seconds."""
    pending: Totals = field(default_factory=Totals)
    rates: TokenRates = field(default_factory=TokenRates)
    """Between the last two snapshots: frames and snapshots beat against each other, so a second may see none or two."""

    @classmethod
    def first(cls, snapshot: WorkerSnapshot, now: float) -> WorkerTrack:
        track = cls(last=snapshot, received=now)
        if snapshot.seq <= FRESH_SEQ:
            track.pending = worker_delta(snapshot, None)
        return track

    def take(self, snapshot: WorkerSnapshot, now: float) -> bool:
        """Count a further snapshot. False where it is old news. Raises CounterWentBack after counting it anew."""
        epoch, known = snapshot.address.epoch, self.last.address.epoch
        if epoch < known or (epoch == known and snapshot.seq <= self.last.seq):
            return False
        anew = False
        try:
            delta = worker_delta(snapshot, self.last if epoch == known else None)
        except CounterWentBack:
            delta, anew = worker_delta(snapshot, None), True
        span = now - self.received
        if span >= RATE_SPAN_S:
            self.rates = TokenRates(hit=delta.hit / span, miss=delta.miss / span, output=delta.output / span)
        self.pending.add(delta)
        self.last, self.received = snapshot, now
        if anew:
            raise CounterWentBack(f"worker {snapshot.address}")
        return True

    def drain(self) -> Totals:
        """Tokens reported since the last look."""
        news, self.pending = self.pending, Totals()
        return news


def worker_delta(new: WorkerSnapshot, old: WorkerSnapshot | None) -> Totals:
    """Tokens since `old`, or since the start of the process. Raises CounterWentBack."""
    if old is None:
        return Totals(hit=new.hit_tokens, miss=new.miss_tokens, output=new.output_tokens)
    return Totals(
        hit=_increase(new.hit_tokens, old.hit_tokens),
        miss=_increase(new.miss_tokens, old.miss_tokens),
        output=_increase(new.output_tokens, old.output_tokens),
    )


@dataclass(slots=True)
class GatewayTrack:
    last: GatewaySnapshot
    received: float
    pending: Totals = field(default_factory=Totals)
    e2e: Histogram = field(default_factory=Histogram)
    """End-to-end times since the last look, like `pending`."""
    ttft_s: float = 0.0
    tbt_s: float = 0.0
    """Sums of seconds since the last look."""

    @classmethod
    def first(cls, snapshot: GatewaySnapshot, now: float) -> GatewayTrack:
        track = cls(last=snapshot, received=now)
        if snapshot.seq <= FRESH_SEQ:
            track._count(snapshot, None)
        return track

    def take(self, snapshot: GatewaySnapshot, now: float) -> bool:
        """Count a further snapshot. False where it is old news. Raises CounterWentBack after counting it anew."""
        known = self.last.started
        if snapshot.started < known or (snapshot.started == known and snapshot.seq <= self.last.seq):
            return False
        anew = False
        try:
            self._count(snapshot, self.last if snapshot.started == known else None)
        except CounterWentBack:
            self._count(snapshot, None)
            anew = True
        self.last, self.received = snapshot, now
        if anew:
            raise CounterWentBack(f"gateway {snapshot.gateway}")
        return True

    def _count(self, new: GatewaySnapshot, old: GatewaySnapshot | None) -> None:
        zero = Histogram()
        before: Sequence[Histogram] = (old.ttft_s, old.tbt_s, old.e2e_s) if old else (zero, zero, zero)
        delta = Totals(
            ended=_new_keys(new.requests, old.requests if old else {}),
            ttft=_growth(new.ttft_s, before[0]),
            tbt=_growth(new.tbt_s, before[1]),
        )
        e2e = _growth(new.e2e_s, before[2])
        self.pending.add(delta)  # only once every difference is known to be sound
        self.e2e.counts = histograms.merged((self.e2e.counts, e2e))
        self.e2e.total_s += new.e2e_s.total_s - before[2].total_s
        self.ttft_s += new.ttft_s.total_s - before[0].total_s
        self.tbt_s += new.tbt_s.total_s - before[1].total_s

    def drain(self) -> GatewayNews:
        news = GatewayNews(totals=self.pending, e2e=self.e2e, ttft_s=self.ttft_s, tbt_s=self.tbt_s)
        self.pending, self.e2e, self.ttft_s, self.tbt_s = Totals(), Histogram(), 0.0, 0.0
        return news


@dataclass(slots=True)
class GatewayNews:
    """What one gateway reported since the last look."""

    totals: Totals
    e2e: Histogram
    ttft_s: float
    tbt_s: float


class GatewayTotals:
    """All gateways since this process started, for Prometheus: monotone whoever comes and goes."""

    def __init__(self) -> None:
        self.ended: dict[str, int] = {}
        self.ttft = Histogram()
        self.tbt = Histogram()
        self.e2e = Histogram()

    def add(self, news: GatewayNews) -> None:
        self.ended = summed(self.ended, news.totals.ended)
        for mine, counts, seconds in (
            (self.ttft, news.totals.ttft, news.ttft_s),
            (self.tbt, news.totals.tbt, news.tbt_s),
            (self.e2e, news.e2e.counts, news.e2e.total_s),
        ):
            mine.counts = histograms.merged((mine.counts, counts))
            mine.total_s += seconds
