"""Prometheus series of the live feed."""

from __future__ import annotations

from prometheus_client import Counter, Gauge

LIVE_CONNECTIONS = Gauge("galley_live_connections", "Pages that are connected to the live feed")
LIVE_FRAMES_DROPPED = Counter(
    "galley_live_frames_dropped", "Frames that gave way because a page was slow; it fetches a snapshot instead"
)
