"""Sums over a period: what frames are made of, what rollups keep, and how periods are put together."""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal
from typing import Final

import msgspec

from controlplane.telemetry import histograms
from controlplane.telemetry.frames import Frame, Percentiles, TokenCounts, TokenRates
from controlplane.telemetry.names import SUCCESS_REASONS

MAX_REASONS: Final = 64
OTHER: Final = "other"
PICO_PER_DOLLAR: Final = 10**12


class Totals(msgspec.Struct, kw_only=True):
    """Additive: the totals of two periods are those of both together. Money is in pico-dollars."""

    seconds: float = 0.0
    """How much of the period was observed."""
    hit: int = 0
    miss: int = 0
    output: int = 0
    store_hit: int = 0
    """The part of `hit` that came from the KV store."""
    recomputed: int = 0
    """The part of `hit` that ran again all the same."""
    short: int = 0
    """The part of `miss` of prompts shorter than one block."""
    ended: dict[str, int] = {}
    ttft: list[int] = msgspec.field(default_factory=histograms.empty)
    tbt: list[int] = msgspec.field(default_factory=histograms.empty)
    running_s: float = 0.0
    """Request-seconds: divided by `seconds`, the mean number of running requests."""
    waiting_s: float = 0.0
    cost_pico: int = 0
    revenue_pico: int = 0

    def add(self, other: Totals) -> None:
        self.seconds += other.seconds
        self.hit += other.hit
        self.miss += other.miss
        self.output += other.output
        self.store_hit += other.store_hit
        self.recomputed += other.recomputed
        self.short += other.short
        self.ended = summed(self.ended, other.ended)
        self.ttft = histograms.merged((self.ttft, other.ttft))
        self.tbt = histograms.merged((self.tbt, other.tbt))
        self.running_s += other.running_s
        self.waiting_s += other.waiting_s
        self.cost_pico += other.cost_pico
        self.revenue_pico += other.revenue_pico

    @property
    def requests(self) -> int:
        return sum(self.ended.values())

    @property
    def errors(self) -> int:
        return sum(count for reason, count in self.ended.items() if reason not in SUCCESS_REASONS)


def summed(a: dict[str, int], b: dict[str, int]) -> dict[str, int]:
    """Sum by key, with at most MAX_REASONS keys: later ones count as `other`."""
    total = dict(a)
    for key, count in b.items():
        name = key if key in total or len(total) < MAX_REASONS else OTHER
        total[name] = total.get(name, 0) + count
    return total


def together(periods: Iterable[Totals]) -> Totals:
    total = Totals()
    for period in periods:
        total.add(period)
    return total


def percentiles(counts: list[int]) -> Percentiles:
    def ms(q: float) -> float | None:
        seconds = histograms.quantile(counts, q)
        return None if seconds is None else round(seconds * 1000, 3)

    return Percentiles(p50=ms(0.5), p90=ms(0.9), p99=ms(0.99))


def hit_rate(totals: Totals) -> float | None:
    prompt = totals.hit + totals.miss
    return None if prompt == 0 else round(totals.hit / prompt, 6)


def usd_per_hour(pico: int, seconds: float) -> str:
    """An amount over a time as dollars per hour, six places."""
    if seconds <= 0:
        return "0"
    rate = Decimal(pico) * 3600 / (Decimal(str(seconds)) * PICO_PER_DOLLAR)
    return str(rate.quantize(Decimal("0.000001")))


def token_counts(totals: Totals) -> TokenCounts:
    return TokenCounts(
        hit=totals.hit,
        miss=totals.miss,
        output=totals.output,
        store_hit=totals.store_hit,
        recomputed=totals.recomputed,
        short=totals.short,
    )


def history_frame(totals: Totals, *, at: float, resolution: float) -> Frame:
    """The period [at, at + resolution) as a frame; rates are over the time that was observed."""
    seconds = totals.seconds or resolution
    return Frame(
        seq=0,
        at=at,
        window_s=resolution,
        tokens=token_counts(totals),
        tokens_per_s=TokenRates(
            hit=round(totals.hit / seconds, 3),
            miss=round(totals.miss / seconds, 3),
            output=round(totals.output / seconds, 3),
            store_hit=round(totals.store_hit / seconds, 3),
            recomputed=round(totals.recomputed / seconds, 3),
        ),
        hit_rate=hit_rate(totals),
        ttft_ms=percentiles(totals.ttft),
        tbt_ms=percentiles(totals.tbt),
        running=round(totals.running_s / seconds, 3),
        waiting=round(totals.waiting_s / seconds, 3),
        requests_per_s=round(totals.requests / seconds, 4),
        errors_per_s=round(totals.errors / seconds, 4),
        cost_per_hour_usd=usd_per_hour(totals.cost_pico, seconds),
        revenue_per_hour_usd=usd_per_hour(totals.revenue_pico, seconds),
    )
