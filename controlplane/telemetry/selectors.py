"""Reads of telemetry: recent frames from Valkey, older periods from PostgreSQL. Synchronous; safe in any thread."""

from __future__ import annotations

from collections import defaultdict
from datetime import datetime
from enum import StrEnum
from functools import cache
from typing import Any, cast

import msgspec
import redis

from controlplane import valkey
from controlplane.config import settings
from controlplane.telemetry import metrics, names
from controlplane.telemetry.models import COARSE_S, FINE_S, Rollup
from controlplane.telemetry.services import totals_of
from controlplane.telemetry.totals import history_frame

FRAMES_KEPT = 3600
"""One second frames, so an hour."""


class Resolution(StrEnum):
    SECOND = "1s"
    FINE = "10s"
    COARSE = "5m"


@cache
def client() -> redis.Redis:
    """The client of this process."""
    return valkey.client(settings().redis_url)


def snapshot(seconds: int = 300) -> dict[str, Any]:
    """`{"seq": n, "frames": [...]}`: the frames of the last `seconds` (to 3600), oldest first, the newest one whole.

    Older ones have no workers and gateways. `seq` is the newest frame's, 0 without any. Raises redis.RedisError.
    """
    count = max(1, min(seconds, FRAMES_KEPT))
    with client().pipeline(transaction=True) as pipe:
        pipe.lrange(names.FRAMES_KEY, 0, count - 1)
        pipe.get(names.LATEST_KEY)
        stored, newest = pipe.execute()
    frames = [msgspec.json.decode(frame) for frame in reversed(stored)]
    if newest is not None:
        latest = msgspec.json.decode(newest)
        frames = [frame for frame in frames if frame["seq"] < latest["seq"]] + [latest]
    if not frames:
        return {"seq": 0, "frames": []}
    last = frames[-1]
    return {"seq": last["seq"], "frames": [frame for frame in frames if frame["at"] > last["at"] - count]}


def history(resolution: Resolution | str, start: datetime, end: datetime) -> list[dict[str, Any]]:
    """Periods that begin in [start, end), oldest first, shaped like frames (`seq` 0); those without data are absent."""
    resolution = Resolution(resolution)
    if resolution is Resolution.SECOND:
        low, high = start.timestamp(), end.timestamp()
        return [frame for frame in snapshot(FRAMES_KEPT)["frames"] if low <= frame["at"] < high]
    seconds = FINE_S if resolution is Resolution.FINE else COARSE_S
    periods: dict[datetime, list[Rollup]] = defaultdict(list)
    for row in Rollup.objects.filter(resolution=seconds, at__gte=start, at__lt=end).order_by("at"):
        periods[row.at].append(row)
    return [
        cast(
            dict[str, Any],
            msgspec.to_builtins(history_frame(totals_of(rows), at=at.timestamp(), resolution=seconds)),
        )
        for at, rows in periods.items()
    ]


def metrics_state() -> metrics.MetricsState | None:
    """What the telemetry process last wrote for `/metrics`; None where it never did. Raises redis.RedisError."""
    data = cast("bytes | None", client().get(names.METRICS_KEY))
    return None if data is None else metrics.decode(data)
