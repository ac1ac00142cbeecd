"""What the telemetry process hands to `/metrics` through Valkey: the last snapshots, and totals over all gateways."""

from __future__ import annotations

import msgspec

from controlplane.telemetry.aggregator import Aggregator
from controlplane.telemetry.frames import Frame
from workers.snapshots import Histogram, WorkerSnapshot


class WorkerReading(msgspec.Struct, kw_only=True):
    snapshot: WorkerSnapshot
    age_s: float


class MetricsState(msgspec.Struct, kw_only=True):
    at: float
    """Unix time."""
    frame: Frame
    """The newest frame."""
    workers: list[WorkerReading]
    ended: dict[str, int]
    """Requests by how they ended, over all gateways since the telemetry process's start."""
    ttft: Histogram
    tbt: Histogram
    e2e: Histogram
    decode: Histogram
    events: dict[str, int]
    gauges: dict[str, float]


_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[MetricsState] = msgspec.msgpack.Decoder(MetricsState)


def metrics_state(aggregator: Aggregator, frame: Frame, *, now: float, gauges: dict[str, float]) -> MetricsState:
    totals = aggregator.gateway_totals
    return MetricsState(
        at=frame.at,
        frame=frame,
        workers=[
            WorkerReading(snapshot=track.last, age_s=max(0.0, now - track.received))
            for _, track in sorted(aggregator.workers.items())
        ],
        ended=totals.ended,
        ttft=totals.latencies.ttft,
        tbt=totals.latencies.tbt,
        e2e=totals.latencies.e2e,
        decode=totals.latencies.decode,
        events=dict(aggregator.events),
        gauges=gauges,
    )


def encode(state: MetricsState) -> bytes:
    return _encoder.encode(state)


def decode(data: bytes) -> MetricsState:
    """Raises msgspec.DecodeError."""
    return _decoder.decode(data)
