"""Finds workers by their leases in Valkey. Leases say where to dial; they never say that a worker lives."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable

import msgspec
import redis.asyncio

from workers.spec import LEASE_PREFIX, WorkerLease, lease_key

log = logging.getLogger(__name__)

SCAN_INTERVAL_S = 5.0
_SCAN_COUNT = 1000


class Discovery:
    """Reads the leases of known names each time, and looks for unknown names now and then.

    A scan walks all keys, which may be many: names normally come from the fleet's rows (`names`).
    """

    def __init__(
        self,
        valkey: redis.asyncio.Redis,
        *,
        names: Callable[[], Iterable[str]],
        found: Callable[[WorkerLease], None],
    ) -> None:
        self._valkey = valkey
        self._names = names
        self._found = found
        self._scanned: set[str] = set()
        self._scanned_at: float | None = None

    async def read(self) -> None:
        """Report every lease there is. Raises redis.RedisError or OSError while Valkey is away."""
        now = time.monotonic()
        if self._scanned_at is None or now - self._scanned_at >= SCAN_INTERVAL_S:
            self._scanned = {
                key.decode().removeprefix(LEASE_PREFIX)
                async for key in self._valkey.scan_iter(match=f"{LEASE_PREFIX}*", count=_SCAN_COUNT)
            }
            self._scanned_at = now
        names = sorted({*self._names(), *self._scanned})
        if not names:
            return
        for name, value in zip(names, await self._valkey.mget([lease_key(name) for name in names]), strict=True):
            if isinstance(value, bytes):
                self._report(name, value)

    def _report(self, name: str, value: bytes) -> None:
        try:
            lease = msgspec.msgpack.decode(value, type=WorkerLease)
        except msgspec.DecodeError as error:
            log.error("the lease of worker %s is not readable: %s", name, error)
            return
        self._found(lease)
