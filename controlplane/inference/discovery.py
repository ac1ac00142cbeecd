"""Finds workers by their leases in Valkey. Leases say where to dial; they never say that a worker lives."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable

import msgspec
import redis.asyncio

from workers.spec import LEASE_INDEX, LEASE_INDEX_KEPT_S, WorkerLease, lease_key

log = logging.getLogger(__name__)


class Discovery:
    """Reads the leases of the names that workers keep in LEASE_INDEX, and of those known otherwise (`names`)."""

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

    async def read(self) -> None:
        """Report every lease there is. Raises redis.RedisError or OSError while Valkey is away."""
        async with self._valkey.pipeline(transaction=False) as pipe:
            pipe.zremrangebyscore(LEASE_INDEX, "-inf", time.time() - LEASE_INDEX_KEPT_S)
            pipe.zrange(LEASE_INDEX, 0, -1)
            _, listed = await pipe.execute()
        names = sorted({*self._names(), *(name.decode() for name in listed)})
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
