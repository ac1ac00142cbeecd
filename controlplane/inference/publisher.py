"""Publishes this gateway's telemetry on Valkey."""

from __future__ import annotations

import redis.asyncio

from controlplane.inference.stats import GatewayStats
from workers import snapshots


class SnapshotPublisher:
    """Counters are cumulative: what is not heard while Valkey is away is in the next snapshot."""

    def __init__(self, valkey: redis.asyncio.Redis, stats: GatewayStats, *, gateway: str, started: int) -> None:
        self._valkey = valkey
        self._stats = stats
        self._gateway = gateway
        self._started = started
        self._seq = 0

    async def publish(self) -> None:
        """Raises redis.RedisError or OSError while Valkey is away."""
        self._seq += 1
        snapshot = self._stats.snapshot(gateway=self._gateway, started=self._started, seq=self._seq)
        await self._valkey.publish(snapshots.CHANNEL, snapshots.encode(snapshot))
