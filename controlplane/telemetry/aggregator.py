"""Snapshots in, one frame a second out. Pure of I/O; bounded in the number of processes it remembers."""

from __future__ import annotations

from collections import Counter, deque
from datetime import UTC, datetime
from typing import Final

import msgspec

from controlplane.telemetry.economics import Economics, NoPrice, cost_pico, micro_as_usd
from controlplane.telemetry.frames import (
    FORGET_S,
    STALE_S,
    WINDOW_S,
    Frame,
    GatewayLine,
    TokenRates,
    WorkerLine,
)
from controlplane.telemetry.processes import CounterWentBack, GatewayNews, GatewayTrack, WorkerTrack
from controlplane.telemetry.totals import Totals, hit_rate, percentiles, together, token_counts, usd_per_hour
from workers.snapshots import GatewaySnapshot, Snapshot, WorkerSnapshot, decode

MAX_PROCESSES: Final = 4096


class Aggregator:
    """State of all publishing processes. Times are monotonic seconds, given by the caller."""

    def __init__(self) -> None:
        self.workers: dict[tuple[str, int], WorkerTrack] = {}
        self.gateways: dict[str, GatewayTrack] = {}
        self.gateway_totals = GatewayNews()
        """All gateways since this process started, for Prometheus: it only grows, whoever comes and goes."""
        self.economics = Economics()
        self.events: Counter[str] = Counter()
        """What should be rare, and the number of snapshots; exported."""
        self._window: deque[Totals] = deque(maxlen=WINDOW_S)

    # --- in ---------------------------------------------------------------------------------------------------

    def receive(self, data: bytes, now: float) -> None:
        """One message of the channel. What cannot be read is counted, and otherwise ignored."""
        try:
            snapshot = decode(data)
        except msgspec.DecodeError:
            self.events["undecodable"] += 1
            return
        self.events["snapshots"] += 1
        try:
            if not self._take(snapshot, now):
                self.events["old_snapshots"] += 1
        except CounterWentBack:
            self.events["counters_went_back"] += 1

    def _take(self, snapshot: Snapshot, now: float) -> bool:
        if isinstance(snapshot, WorkerSnapshot):
            key = (snapshot.address.worker, snapshot.address.rank)
            worker = self.workers.get(key)
            if worker is not None:
                return worker.take(snapshot, now)
            if self._room():
                self.workers[key] = WorkerTrack.first(snapshot, now)
            return True
        gateway = self.gateways.get(snapshot.gateway)
        if gateway is not None:
            return gateway.take(snapshot, now)
        if self._room():
            self.gateways[snapshot.gateway] = GatewayTrack.first(snapshot, now)
        return True

    def _room(self) -> bool:
        if len(self.workers) + len(self.gateways) < MAX_PROCESSES:
            return True
        self.events["processes_over_bound"] += 1
        return False

    # --- out --------------------------------------------------------------------------------------------------

    def frame(self, *, seq: int, at: float, now: float, seconds: float, loop_age_s: float) -> tuple[Frame, Totals]:
        """The frame of the `seconds` up to now, and its totals. Call it once per period: it takes what is pending."""
        live = [track for track in self.workers.values() if now - track.received <= STALE_S]
        gateways = [track.last for track in self.gateways.values() if now - track.received <= STALE_S]
        micro = self.economics.cost_micro_per_hour(track.last.node for track in live)
        totals = self._drain(at)
        totals.seconds = seconds
        totals.running_s = sum(gateway.running for gateway in gateways) * seconds
        totals.waiting_s = sum(gateway.waiting for gateway in gateways) * seconds
        totals.cost_pico = cost_pico(micro, seconds)
        self._window.append(totals)
        recent = together(self._window)
        frame = Frame(
            seq=seq,
            at=at,
            window_s=round(seconds, 3),
            tokens=token_counts(totals),
            tokens_per_s=TokenRates(
                hit=round(sum(track.rates.hit for track in live), 3),
                miss=round(sum(track.rates.miss for track in live), 3),
                output=round(sum(track.rates.output for track in live), 3),
                store_hit=round(sum(track.rates.store_hit for track in live), 3),
                recomputed=round(sum(track.rates.recomputed for track in live), 3),
            ),
            hit_rate=hit_rate(recent),
            ttft_ms=percentiles(recent.ttft),
            tbt_ms=percentiles(recent.tbt),
            running=sum(gateway.running for gateway in gateways),
            waiting=sum(gateway.waiting for gateway in gateways),
            requests_per_s=round(totals.requests / seconds, 3),
            errors_per_s=round(totals.errors / seconds, 3),
            cost_per_hour_usd=micro_as_usd(micro),
            revenue_per_hour_usd=usd_per_hour(recent.revenue_pico, recent.seconds),
            workers=self._worker_lines(now),
            gateways=self._gateway_lines(now),
            loop_age_s=round(loop_age_s, 3),
        )
        self._forget(now)
        return frame, totals

    def _drain(self, at: float) -> Totals:
        instant = datetime.fromtimestamp(at, UTC)
        totals = Totals()
        for worker in self.workers.values():
            news = worker.drain()
            try:
                news.revenue_pico = self.economics.revenue_pico(worker.last.model, news, instant)
            except NoPrice:
                self.events["tokens_without_price"] += news.hit + news.miss + news.output
            totals.add(news)
        for gateway in self.gateways.values():
            report = gateway.drain()
            self.gateway_totals.add(report)
            totals.add(report.totals())
        return totals

    def _worker_lines(self, now: float) -> list[WorkerLine]:
        return [_worker_line(self.workers[key], now) for key in sorted(self.workers)]

    def _gateway_lines(self, now: float) -> list[GatewayLine]:
        return [_gateway_line(self.gateways[name], now) for name in sorted(self.gateways)]

    def _forget(self, now: float) -> None:
        """Drained processes that were silent for long; if they come back, they count from where they then stand."""
        self.workers = {key: track for key, track in self.workers.items() if now - track.received <= FORGET_S}
        self.gateways = {name: track for name, track in self.gateways.items() if now - track.received <= FORGET_S}


def _worker_line(track: WorkerTrack, now: float) -> WorkerLine:
    last = track.last
    age = max(0.0, now - track.received)
    stale = age > STALE_S
    return WorkerLine(
        worker=last.address.worker,
        epoch=last.address.epoch,
        rank=last.address.rank,
        role=last.role.value,
        node=last.node,
        deployment=last.deployment,
        revision=last.revision,
        model=last.model,
        state=last.state.value,
        step_age_s=round(last.step_age_s + age, 3),
        running=last.running,
        waiting=last.waiting,
        waiting_tokens=last.waiting_tokens,
        blocks_total=last.blocks_total,
        blocks_used=last.blocks_used,
        blocks_cached=last.blocks_cached,
        transfers=last.transfers,
        tokens_per_s=0.0 if stale else round(track.rates.miss + track.rates.output, 3),
        trimmed=_trimmed(last),
        observed_age_s=round(age, 3),
        stale=stale,
    )


def _trimmed(last: WorkerSnapshot) -> float:
    """The share of layers times prompt rows that were not computed."""
    whole = len(last.rows_saved) * last.computed_tokens
    return round(sum(last.rows_saved) / whole, 4) if whole else 0.0


def _gateway_line(track: GatewayTrack, now: float) -> GatewayLine:
    last: GatewaySnapshot = track.last
    age = max(0.0, now - track.received)
    return GatewayLine(
        gateway=last.gateway,
        running=last.running,
        waiting=last.waiting,
        observed_age_s=round(age, 3),
        stale=age > STALE_S,
    )
