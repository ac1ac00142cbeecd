"""Discovery lease and telemetry, once a second, in Valkey. The worker serves just as well without it."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections import deque
from collections.abc import Callable

import msgspec
from redis.exceptions import RedisError

from workers import snapshots, valkey
from workers.records import RECORDS_BOUND, RECORDS_STREAM, encode
from workers.serving.requests import Ended
from workers.snapshots import WorkerSnapshot
from workers.spec import LEASE_INDEX, LEASE_TTL_S, WorkerLease, WorkerSpec, lease_key

logger = logging.getLogger(__name__)

TIMEOUT_S = 2.0
ENDED_BATCH = 1000
"""Records in one message."""
_DELETE_IF_OURS = """
if redis.call('get', KEYS[1]) ~= ARGV[1] then return 0 end
redis.call('zrem', KEYS[2], ARGV[2])
return redis.call('del', KEYS[1])
"""


class Publisher:
    def __init__(
        self, spec: WorkerSpec, snapshot: Callable[[], WorkerSnapshot], ended: deque[Ended] | None = None
    ) -> None:
        """`ended` is emptied: what is told of requests for reconciliation."""
        self._spec = spec
        self._ended = ended if ended is not None else deque()
        self._snapshot = snapshot
        self._key = lease_key(spec.address.worker)
        self._lease = msgspec.msgpack.encode(
            WorkerLease(
                address=spec.address,
                role=spec.role,
                node=spec.node,
                deployment=spec.deployment,
                revision=spec.revision,
                model=spec.model,
                endpoint=spec.endpoint,
                pid=os.getpid(),
            )
        )
        self._valkey = valkey.async_client(spec.valkey_url, timeout_s=TIMEOUT_S)
        self._away = False
        self.failures = 0
        self.turned_at = time.monotonic()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            self.turned_at = time.monotonic()
            await self._publish()
            await asyncio.sleep(self._spec.heartbeat_s)

    async def _publish(self) -> None:
        # Taken out before they are sent: while Valkey answers, others may end, and push the oldest out.
        ended = [self._ended.popleft() for _ in range(min(len(self._ended), ENDED_BATCH))]
        try:
            async with self._valkey.pipeline(transaction=False) as pipe:
                pipe.set(self._key, self._lease, ex=LEASE_TTL_S)
                pipe.zadd(LEASE_INDEX, {self._spec.address.worker: time.time()})
                pipe.publish(snapshots.CHANNEL, snapshots.encode(self._snapshot()))
                if ended:
                    records = encode([one.record(self._spec.address) for one in ended])
                    pipe.xadd(RECORDS_STREAM, {"r": records}, maxlen=RECORDS_BOUND, approximate=True)
                await pipe.execute()
        except (RedisError, OSError) as error:
            self.failures += 1
            self._put_back(ended)
            if not self._away:
                logger.warning("Valkey is away, serving goes on: %s", error)
            self._away = True
        else:
            if self._away:
                logger.info("Valkey is back")
            self._away = False

    def _put_back(self, ended: list[Ended]) -> None:
        """For the next try; those for which there is no room any more are the oldest."""
        bound = self._ended.maxlen
        room = len(ended) if bound is None else bound - len(self._ended)
        self._ended.extendleft(reversed(ended[max(len(ended) - room, 0) :]))

    async def withdraw(self) -> None:
        """Take the lease back, unless a newer process has the key already."""
        try:
            async with asyncio.timeout(TIMEOUT_S):
                keys, values = (self._key, LEASE_INDEX), (self._lease, self._spec.address.worker)
                await self._valkey.eval(_DELETE_IF_OURS, len(keys), *keys, *values)
                await self._valkey.aclose()
        except (RedisError, OSError, TimeoutError) as error:
            logger.warning("the lease could not be taken back, it expires by itself: %s", error)
