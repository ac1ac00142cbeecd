"""What is known of each publishing process, and what its cumulative counters say happened since the last look.

A counter belongs to (process, epoch). A missed snapshot loses resolution, never tokens; an older epoch or a repeated
sequence number is not counted; a process that was running before we came counts from where it stands.
"""

from __future__ import annotations

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
            self.rates = TokenRates(
                hit=delta.hit / span,
                miss=delta.miss / span,
                output=delta.output / span,
                store_hit=delta.store_hit / span,
                recomputed=delta.recomputed / span,
            )
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

    def grown(name: str) -> int:
        return _increase(getattr(new, name), getattr(old, name) if old is not None else 0)

    return Totals(
        hit=grown("hit_tokens"),
        miss=grown("miss_tokens"),
        output=grown("output_tokens"),
        store_hit=grown("store_hit_tokens"),
        recomputed=grown("recomputed_tokens"),
        short=grown("short_tokens"),
    )


class Latencies:
    """The gateways' histograms as differences that add up."""

    def __init__(self) -> None:
        self.ttft = Histogram()
        self.tbt = Histogram()
        self.e2e = Histogram()
        self.decode = Histogram()

    @classmethod
    def between(cls, new: GatewaySnapshot, old: GatewaySnapshot | None) -> Latencies:
        """What was observed since `old`, or since the start. Raises CounterWentBack."""
        zero = Histogram()
        made = cls()
        for mine, now, before in (
            (made.ttft, new.ttft_s, old.ttft_s if old else zero),
            (made.tbt, new.tbt_s, old.tbt_s if old else zero),
            (made.e2e, new.e2e_s, old.e2e_s if old else zero),
            (made.decode, new.decode_s, old.decode_s if old else zero),
        ):
            mine.counts = _growth(now, before)
            mine.total_s = now.total_s - before.total_s
        return made

    def add(self, other: Latencies) -> None:
        for mine, further in (
            (self.ttft, other.ttft),
            (self.tbt, other.tbt),
            (self.e2e, other.e2e),
            (self.decode, other.decode),
        ):
            mine.counts = histograms.merged((mine.counts, further.counts))
            mine.total_s += further.total_s


@dataclass(slots=True)
class GatewayNews:
    """What gateways reported: how requests ended, and their latencies."""

    ended: dict[str, int] = field(default_factory=dict)
    latencies: Latencies = field(default_factory=Latencies)

    @classmethod
    def between(cls, new: GatewaySnapshot, old: GatewaySnapshot | None) -> GatewayNews:
        """Raises CounterWentBack."""
        return cls(ended=_new_keys(new.requests, old.requests if old else {}), latencies=Latencies.between(new, old))

    def add(self, other: GatewayNews) -> None:
        self.ended = summed(self.ended, other.ended)
        self.latencies.add(other.latencies)

    def totals(self) -> Totals:
        return Totals(ended=self.ended, ttft=self.latencies.ttft.counts, tbt=self.latencies.tbt.counts)


@dataclass(slots=True)
class GatewayTrack:
    last: GatewaySnapshot
    received: float
    """Monotonic seconds."""
    pending: GatewayNews = field(default_factory=GatewayNews)

    @classmethod
    def first(cls, snapshot: GatewaySnapshot, now: float) -> GatewayTrack:
        track = cls(last=snapshot, received=now)
        if snapshot.seq <= FRESH_SEQ:
            track.pending = GatewayNews.between(snapshot, None)
        return track

    def take(self, snapshot: GatewaySnapshot, now: float) -> bool:
        """Count a further snapshot. False where it is old news. Raises CounterWentBack after counting it anew."""
        known = self.last.started
        if snapshot.started < known or (snapshot.started == known and snapshot.seq <= self.last.seq):
            return False
        anew = False
        try:
            news = GatewayNews.between(snapshot, self.last if snapshot.started == known else None)
        except CounterWentBack:
            news, anew = GatewayNews.between(snapshot, None), True
        self.pending.add(news)
        self.last, self.received = snapshot, now
        if anew:
            raise CounterWentBack(f"gateway {snapshot.gateway}")
        return True

    def drain(self) -> GatewayNews:
        """What was reported since the last look."""
        news, self.pending = self.pending, GatewayNews()
        return news
