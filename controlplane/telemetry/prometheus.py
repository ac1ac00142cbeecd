"""`/metrics`: the telemetry process's last word as Prometheus series, and what this process counts itself.

Labels are bounded by the fleet (workers, roles, models) and by lists in the code (reasons); experts, requests and
tenants are never labels.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator

from prometheus_client import REGISTRY, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from controlplane.accounts.keycache import key_cache
from controlplane.telemetry import names
from controlplane.telemetry.frames import STALE_S
from controlplane.telemetry.metrics import MetricsState, WorkerReading
from workers.snapshots import LATENCY_BOUNDS_S, Histogram

_WORKER = ("model_name", "worker", "role", "rank")


def _labels(reading: WorkerReading) -> list[str]:
    snapshot = reading.snapshot
    return [snapshot.model, snapshot.address.worker, snapshot.role.value, str(snapshot.address.rank)]


def _buckets(histogram: Histogram) -> list[tuple[str, float]]:
    """Cumulative counts with their bounds as Prometheus writes them."""
    buckets: list[tuple[str, float]] = []
    below = 0
    for bound, count in zip((*map(str, LATENCY_BOUNDS_S), "+Inf"), histogram.counts, strict=True):
        below += count
        buckets.append((bound, below))
    return buckets


def _gauge(name: str, text: str, values: Iterable[tuple[list[str], float]], labels: Iterable[str]) -> Metric:
    family = GaugeMetricFamily(name, text, labels=list(labels))
    for label_values, value in values:
        family.add_metric(label_values, value)
    return family


def _counter(name: str, text: str, values: Iterable[tuple[list[str], float]], labels: Iterable[str]) -> Metric:
    family = CounterMetricFamily(name, text, labels=list(labels))
    for label_values, value in values:
        family.add_metric(label_values, value)
    return family


def _histogram(
    name: str, text: str, values: Iterable[tuple[list[str], Histogram]], labels: Iterable[str] = ()
) -> Metric:
    family = HistogramMetricFamily(name, text, labels=list(labels))
    for label_values, value in values:
        family.add_metric(label_values, _buckets(value), sum_value=value.total_s)
    return family


class TelemetryCollector(Collector):
    """Series of one reading; `state` None says that the telemetry process has not spoken."""

    def __init__(self, state: MetricsState | None) -> None:
        self._state = state

    def collect(self) -> Iterator[Metric]:
        state = self._state
        age = None if state is None else max(0.0, time.time() - state.at)
        up = age is not None and age <= STALE_S
        yield _gauge(names.TELEMETRY_UP, "Whether the telemetry process speaks", [([], float(up))], [])
        if state is None or age is None:
            return
        yield _gauge(names.TELEMETRY_AGE, "Seconds since it last spoke", [([], age)], [])
        yield from self._workers(state.workers, age)
        yield from self._requests(state)
        frame = state.frame
        yield _gauge(names.COST_PER_HOUR, "US dollars", [([], float(frame.cost_per_hour_usd))], [])
        yield _gauge(names.REVENUE_PER_HOUR, "US dollars", [([], float(frame.revenue_per_hour_usd))], [])
        gauges = [([name], value) for name, value in sorted(state.gauges.items())]
        yield _gauge(names.TELEMETRY_GAUGE, "Loops and queues of the telemetry process", gauges, ["name"])
        events = [([name], float(count)) for name, count in sorted(state.events.items())]
        yield _counter(names.TELEMETRY_EVENTS, "Counted by the telemetry process", events, ["event"])

    def _requests(self, state: MetricsState) -> Iterator[Metric]:
        good = [([r], float(n)) for r, n in sorted(state.ended.items()) if r in names.SUCCESS_REASONS]
        bad = [([r], float(n)) for r, n in sorted(state.ended.items()) if r not in names.SUCCESS_REASONS]
        yield _counter(names.REQUEST_SUCCESS, "Requests by how they ended", good, ["finished_reason"])
        yield _counter(names.REQUEST_ERRORS, "Requests that failed, by code", bad, ["code"])
        yield _histogram(names.TTFT, "Acceptance to first token sent", [([], state.ttft)])
        yield _histogram(names.INTER_OUTPUT, "Between consecutive output tokens", [([], state.tbt)])
        yield _histogram(names.END_TO_END, "Acceptance to the end", [([], state.e2e)])
        yield _histogram(names.DECODE_TIME, "First token sent to the end", [([], state.decode)])
        yield _gauge(names.GATEWAY_RUNNING, "Requests with a token, all gateways", [([], state.frame.running)], [])
        yield _gauge(names.GATEWAY_WAITING, "Requests without one yet", [([], state.frame.waiting)], [])

    def _workers(self, readings: list[WorkerReading], age: float) -> Iterator[Metric]:
        rows = [(_labels(reading), reading.snapshot) for reading in readings]
        ages = [(_labels(reading), reading.age_s + age) for reading in readings]
        live = [(labels, float(seconds <= STALE_S)) for labels, seconds in ages]
        yield _gauge(names.WORKER_UP, "Whether its snapshots are fresh", live, _WORKER)
        yield _gauge(names.WORKER_SNAPSHOT_AGE, "Age of its last snapshot", ages, _WORKER)
        for name, text, read in _WORKER_GAUGES:
            yield _gauge(name, text, [(labels, read(snapshot)) for labels, snapshot in rows], _WORKER)
        for name, text, read in _WORKER_COUNTERS:
            yield _counter(name, text, [(labels, read(snapshot)) for labels, snapshot in rows], _WORKER)
        for name, text, histogram in _WORKER_HISTOGRAMS:
            yield _histogram(name, text, [(labels, histogram(snapshot)) for labels, snapshot in rows], _WORKER)
        saved = [([*labels, str(n)], float(v)) for labels, s in rows for n, v in enumerate(s.rows_saved) if v]
        troubles = [([*labels, trouble], 1.0) for labels, s in rows for trouble in s.store_troubles]
        yield _gauge(names.STORE_TROUBLE, "What is wrong with the KV store", troubles, (*_WORKER, "trouble"))
        yield _counter(names.PREFILL_ROWS_SAVED, "Rows of prompts that a layer was spared", saved, (*_WORKER, "layer"))
        gauges = [([*labels, n], v) for labels, s in rows for n, v in sorted(s.gauges.items())]
        yield _gauge(names.WORKER_GAUGE, "Queues and waits by name", gauges, (*_WORKER, "name"))
        events = [([*labels, n], float(v)) for labels, s in rows for n, v in sorted(s.events.items())]
        yield _counter(names.WORKER_EVENTS, "What should be rare, by name", events, (*_WORKER, "event"))


_WORKER_GAUGES = (
    (names.REQUESTS_RUNNING, "Requests in the batch", lambda s: float(s.running)),
    (names.REQUESTS_WAITING, "Requests queued", lambda s: float(s.waiting)),
    (
        names.KV_CACHE_USAGE,
        "Blocks in use, 0 to 1",
        lambda s: s.blocks_used / s.blocks_total if s.blocks_total else 0.0,
    ),
    (names.BLOCKS_TOTAL, "Blocks in the pool", lambda s: float(s.blocks_total)),
    (names.BLOCKS_CACHED, "Unreferenced blocks with reusable prefixes", lambda s: float(s.blocks_cached)),
    (names.TRANSFERS, "Requests whose blocks are in or wait for transfer", lambda s: float(s.transfers)),
    (names.WORKER_STEP_AGE, "Since the engine loop last came round, when observed", lambda s: s.step_age_s),
)
_WORKER_COUNTERS = (
    (names.PREFIX_QUERIES, "Prompt tokens looked up", lambda s: float(s.hit_tokens + s.miss_tokens)),
    (names.PREFIX_HITS, "Prompt tokens found", lambda s: float(s.hit_tokens)),
    (names.STORE_HITS, "Of those, found in the KV store", lambda s: float(s.store_hit_tokens)),
    (names.RECOMPUTED_TOKENS, "Of those, run again for their windows", lambda s: float(s.recomputed_tokens)),
    (names.SHORT_TOKENS, "Missed by prompts shorter than a block", lambda s: float(s.short_tokens)),
    (names.PROMPT_TOKENS, "Prompt tokens scheduled", lambda s: float(s.hit_tokens + s.miss_tokens)),
    (names.GENERATION_TOKENS, "Output tokens", lambda s: float(s.output_tokens)),
    (names.COMPUTED_TOKENS, "Rows that prefill ran, replays included", lambda s: float(s.computed_tokens)),
    (names.PREEMPTIONS, "Requests set back", lambda s: float(s.preemptions)),
    (names.WORKER_STEPS, "Engine steps", lambda s: float(s.steps)),
    (names.TRANSFERRED_BLOCKS, "Blocks pulled", lambda s: float(s.transferred_blocks)),
    (names.TRANSFER_SKIPPED_BLOCKS, "Blocks that were there already", lambda s: float(s.transfer_skipped_blocks)),
)
_WORKER_HISTOGRAMS = (
    (names.QUEUE_TIME, "Queued before prefill", lambda s: s.queue_s),
    (names.PREFILL_TIME, "Start of prefill to first token", lambda s: s.prefill_s),
    (names.WORKER_STEP_TIME, "One engine step", lambda s: s.step_s),
    (names.TRANSFER_TIME, "End of prefill to start of decoding", lambda s: s.transfer_s),
)


class KeyCacheCollector(Collector):
    """The key cache of this process."""

    def collect(self) -> Iterator[Metric]:
        cache = key_cache()
        yield _gauge("galley_key_cache_heard", "Whether revocations reach this process", [([], float(cache.heard))], [])
        yield _gauge("galley_key_cache_loop_age_seconds", "Since its listener turned", [([], cache.loop_age_s)], [])
        yield _gauge(
            "galley_key_cache_flush_age_seconds", "Since last uses were written", [([], cache.flush_age_s)], []
        )
        yield _counter("galley_key_cache_lookups", "Keys looked up in the database", [([], float(cache.lookups))], [])


def exposition(state: MetricsState | None) -> bytes:
    """Prometheus text: the cluster's series, then those of this process."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(TelemetryCollector(state))
    registry.register(KeyCacheCollector())
    return generate_latest(registry) + generate_latest(REGISTRY)
