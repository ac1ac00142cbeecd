"""Brings ended requests from the journal to the ledger: on the stream at once, again where Valkey lost them, until the
ledger says that it has them.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from dataclasses import dataclass
from typing import Any, Final, cast

import redis
import redis.asyncio

from controlplane.inference.journal import UsageJournal
from controlplane.metering import limit_scripts
from controlplane.metering.events import USAGE_STREAM, UsageEvent, acks_key
from controlplane.metering.reservations import Call, settle_call

BATCH: Final = 256
RETRY_S: Final = 0.5
ACKS_BATCH: Final = 5000
MISSED_AFTER_S: Final = 15.0
"""An event that is neither on the stream nor acknowledged after so long was lost with Valkey's memory."""
GATEWAYS_KEY: Final = "galley:gateways"
GATEWAY_TTL_S: Final = 10.0

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Sent:
    event: UsageEvent
    cost_nano: int
    entry: bytes = b""
    at: float = 0.0


class UsageShipper:
    """`ship` and `refund` only note; `run` sends. The journal keeps everything meanwhile."""

    def __init__(self, client: redis.asyncio.Redis, journal: UsageJournal) -> None:
        self._client = client
        self._journal = journal
        self._settle = client.register_script(limit_scripts.SETTLE)
        self._refund = client.register_script(limit_scripts.REFUND)
        self._wake = asyncio.Event()
        self._empty = asyncio.Event()
        self._empty.set()
        self._waiting: deque[_Sent] = deque()
        self._refunds: deque[Call] = deque()
        self._sent: dict[int, _Sent] = {}
        """By sequence number, oldest first; until the ledger has them."""
        self.gateways = 1
        """How many share the limits, as Valkey last said."""

    @property
    def waiting(self) -> int:
        return len(self._waiting) + len(self._refunds)

    def ship(self, event: UsageEvent, *, cost_nano: int) -> None:
        self._waiting.append(_Sent(event, cost_nano))
        self._noted()

    def refund(self, call: Call) -> None:
        self._refunds.append(call)
        self._noted()

    def _noted(self) -> None:
        self._empty.clear()
        self._wake.set()

    async def drained(self) -> None:
        """When everything that was noted is sent."""
        await self._empty.wait()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self.waiting:
                try:
                    await self.send()
                except (redis.RedisError, OSError) as error:
                    log.debug("%d ended requests wait for Valkey: %s", self.waiting, error)
                    await asyncio.sleep(RETRY_S)
            self._empty.set()

    async def send(self) -> None:
        """One batch. Raises redis.RedisError or OSError; nothing is forgotten then, and sending twice does no harm."""
        batch = [self._waiting[index] for index in range(min(len(self._waiting), BATCH))]
        refunds = [self._refunds[index] for index in range(min(len(self._refunds), BATCH))]
        async with self._client.pipeline(transaction=False) as pipe:
            for one in batch:
                call = settle_call(one.event, cost_nano=one.cost_nano, publish=True)
                await self._settle(keys=call.keys, args=call.arguments, client=pipe)
            for call in refunds:
                await self._refund(keys=call.keys, args=call.arguments, client=pipe)
            replies = await pipe.execute()
        now = time.monotonic()
        for one, entry in zip(batch, replies, strict=False):
            self._waiting.popleft()
            one.entry, one.at = cast(bytes, entry), now
            self._sent[one.event.intent.seq] = one
        for _ in refunds:
            self._refunds.popleft()

    async def acknowledge(self) -> None:
        """Hear what the ledger has, tell that we live, and send again what was lost. Raises as `send`."""
        await self._take_acks()
        now = time.time()
        async with self._client.pipeline(transaction=False) as pipe:
            pipe.zadd(GATEWAYS_KEY, {self._journal.name: now})
            pipe.zremrangebyscore(GATEWAYS_KEY, "-inf", now - GATEWAY_TTL_S)
            pipe.zcard(GATEWAYS_KEY)
            self.gateways = max(int((await pipe.execute())[-1]), 1)
        await self._find_lost()

    async def _take_acks(self) -> None:
        key = acks_key(self._journal.name)
        while numbers := cast("list[bytes] | None", await cast(Any, self._client.lpop(key, ACKS_BATCH))):
            for number in map(int, numbers):
                self._sent.pop(number, None)
                self._journal.settled(number)

    async def _find_lost(self) -> None:
        late = time.monotonic() - MISSED_AFTER_S
        old: list[_Sent] = []
        for one in self._sent.values():
            if one.at > late or len(old) == BATCH:
                break
            old.append(one)
        if not old:
            return
        async with self._client.pipeline(transaction=False) as pipe:
            for one in old:
                pipe.xrange(USAGE_STREAM, one.entry, one.entry)
            found = await pipe.execute()
        await self._take_acks()  # settled while we asked
        for one, entries in zip(old, found, strict=True):
            if entries or one.event.intent.seq not in self._sent:
                one.at = time.monotonic()
                self._to_the_end(one)
                continue
            log.warning("request %s was lost on its way to the ledger and is sent again", one.event.request_id)
            del self._sent[one.event.intent.seq]
            self.ship(one.event, cost_nano=one.cost_nano)

    def _to_the_end(self, one: _Sent) -> None:
        if self._sent.pop(one.event.intent.seq, None) is not None:
            self._sent[one.event.intent.seq] = one
