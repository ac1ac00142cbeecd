"""From the telemetry process to everybody else: Valkey lists and keys, the Channels group, rollups in PostgreSQL.

Everything here may be away for a while: what waits is bounded, and what had to be dropped is counted.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from datetime import UTC, datetime
from typing import Any, Final

import msgspec
import redis
from asgiref.sync import sync_to_async
from channels.layers import get_channel_layer
from django.db import DatabaseError, InterfaceError, close_old_connections

from controlplane import valkey
from controlplane.telemetry import metrics, names, services
from controlplane.telemetry.frames import Frame, encoder
from controlplane.telemetry.models import FINE_S
from controlplane.telemetry.selectors import FRAMES_KEPT
from controlplane.telemetry.totals import Totals

DEADLINE_S: Final = 0.8
"""For one delivery; a frame a second leaves no room for more."""
BATCH: Final = 200
ROLLUPS_KEPT: Final = 360
"""An hour of 10 s periods that wait for the database."""

log = logging.getLogger(__name__)


def without_processes(frame: Frame) -> Frame:
    return msgspec.structs.replace(frame, workers=[], gateways=[])


class ValkeyDelivery:
    """Frames that could not be written yet wait here, an hour of them at most."""

    def __init__(self, url: str, events: Counter[str]) -> None:
        self._client = valkey.async_client(url, timeout_s=DEADLINE_S)
        self._events = events
        self.waiting: deque[bytes] = deque(maxlen=FRAMES_KEPT)

    async def deliver(self, frame: Frame, state: metrics.MetricsState) -> bool:
        """Write and send one frame, after those that wait. False where Valkey is away: this frame waits too."""
        self.waiting.append(encoder.encode(without_processes(frame)))
        text = encoder.encode(frame)
        try:
            async with asyncio.timeout(DEADLINE_S):
                await self._write(text, metrics.encode(state))
                await self._send(text)
        except (redis.RedisError, OSError, TimeoutError) as error:
            self._events["deliveries_failed"] += 1
            log.warning("a frame could not be delivered (%s); %d wait", error, len(self.waiting))
            return False
        return True

    async def _write(self, latest: bytes, state: bytes) -> None:
        batch = list(self.waiting)[:BATCH]
        async with self._client.pipeline(transaction=True) as pipe:
            pipe.lpush(names.FRAMES_KEY, *batch)
            pipe.ltrim(names.FRAMES_KEY, 0, FRAMES_KEPT - 1)
            pipe.set(names.LATEST_KEY, latest)
            pipe.set(names.METRICS_KEY, state)
            await pipe.execute()
        for _ in batch:
            self.waiting.popleft()

    async def _send(self, text: bytes) -> None:
        layer = get_channel_layer()
        assert layer is not None
        message: dict[str, Any] = {"type": names.MESSAGE_TYPE, "frame": text.decode()}
        await layer.group_send(names.GROUP, message)

    async def close(self) -> None:
        await self._client.aclose()


class RollupDelivery:
    """Collects frames' totals into 10 s periods, and writes finished ones in order."""

    def __init__(self, writer: int, events: Counter[str]) -> None:
        self._writer = writer
        self._events = events
        self._period: int | None = None
        self._totals = Totals()
        self.waiting: deque[tuple[int, Totals]] = deque()

    def add(self, at: float, totals: Totals) -> None:
        """One frame's totals; `at` is Unix time of the frame's end."""
        period = int(at) // FINE_S * FINE_S
        if period != self._period:
            self.close_period()
            self._period = period
        self._totals.add(totals)

    def close_period(self) -> None:
        if self._period is not None and self._totals.seconds > 0:
            self.waiting.append((self._period, self._totals))
            if len(self.waiting) > ROLLUPS_KEPT:
                self.waiting.popleft()
                self._events["rollups_dropped"] += 1
        self._period, self._totals = None, Totals()

    async def write(self) -> bool:
        """Write what waits. False where the database is away."""
        while self.waiting:
            period, totals = self.waiting[0]
            try:
                await sync_to_async(self._store)(period, totals)
            except (DatabaseError, InterfaceError) as error:
                self._events["rollups_failed"] += 1
                log.warning("%d rollups wait for the database (%s)", len(self.waiting), error)
                return False
            self.waiting.popleft()
        return True

    def _store(self, period: int, totals: Totals) -> None:
        close_old_connections()
        at = datetime.fromtimestamp(period, UTC)
        services.rollup_store(resolution=FINE_S, at=at, writer=self._writer, totals=totals)
