"""The telemetry process: listens to every worker and gateway, and speaks once a second. `manage.py telemetry run`."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from datetime import UTC, datetime
from typing import Final

import redis
from asgiref.sync import sync_to_async
from django.db import DatabaseError, InterfaceError, close_old_connections

from controlplane import valkey
from controlplane.telemetry import services
from controlplane.telemetry.aggregator import Aggregator
from controlplane.telemetry.delivery import RollupDelivery, ValkeyDelivery
from controlplane.telemetry.economics import Economics, load_economics
from controlplane.telemetry.metrics import metrics_state
from controlplane.telemetry.models import COARSE_S
from workers.snapshots import CHANNEL

PERIOD_S: Final = 1.0
RETRY_S: Final = (0.1, 2.0)
"""First and longest pause before listening again."""
ECONOMICS_S: Final = 10.0
ROLLUP_RETRY_S: Final = 5.0
CLOSE_DEADLINE_S: Final = 5.0

log = logging.getLogger(__name__)


class TelemetryProcess:
    """Four loops; each says how long ago it last came round (`loop_ages`)."""

    def __init__(self, redis_url: str) -> None:
        self._url = redis_url
        self._started = int(time.time())
        self._seq = self._started  # so that a successor, a second later at least, goes on above us
        self.aggregator = Aggregator()
        self.valkey = ValkeyDelivery(redis_url, self.aggregator.events)
        self.rollups = RollupDelivery(self._started, self.aggregator.events)
        self.listening = False
        self._stop = asyncio.Event()
        self._turned = dict.fromkeys(("listen", "tick", "economics", "rollups"), time.monotonic())

    def loop_ages(self) -> dict[str, float]:
        now = time.monotonic()
        return {name: now - at for name, at in self._turned.items()}

    async def run(self, stop: asyncio.Event) -> None:
        """Until `stop` is set; then the period that has begun is written too. A loop that fails ends the process.

        Loops are asked to end, not cancelled: the clients that they wait in may swallow a cancellation.
        """
        self._stop = stop
        tasks = [
            asyncio.create_task(loop(), name=name)
            for name, loop in (
                ("listen", self._listen),
                ("tick", self._tick),
                ("economics", self._economics),
                ("rollups", self._roll_up),
            )
        ]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        stop.set()
        done, late = await asyncio.wait(tasks, timeout=CLOSE_DEADLINE_S)
        for task in late:
            log.warning("the %s loop did not end within %.0f s", task.get_name(), CLOSE_DEADLINE_S)
            task.cancel()
        await self._close()
        for task in done:
            task.result()  # a loop that failed is a fault: let it be seen

    async def _pause(self, seconds: float) -> None:
        """Sleep, or less where the process is to end."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stop.wait(), max(0.0, seconds))

    async def _close(self) -> None:
        self.rollups.close_period()
        try:
            async with asyncio.timeout(CLOSE_DEADLINE_S):
                await self.rollups.write()
                await self.valkey.close()
        except (TimeoutError, redis.RedisError, OSError) as error:
            log.warning("left without writing everything (%s)", error)

    # --- loops ------------------------------------------------------------------------------------------------

    async def _listen(self) -> None:
        first, longest = RETRY_S
        delay = first
        while not self._stop.is_set():
            try:
                async with valkey.async_client(self._url) as client:
                    pubsub = client.pubsub()
                    try:
                        await pubsub.subscribe(CHANNEL)
                        async for message in valkey.follow_async(pubsub):
                            self._turned["listen"] = time.monotonic()
                            self.listening, delay = True, first
                            if message is not None and message["type"] == "message":
                                self.aggregator.receive(message["data"], time.monotonic())
                            if self._stop.is_set():
                                break
                    finally:
                        self.listening = False
                        await pubsub.aclose()
            except (redis.RedisError, OSError) as error:
                self.aggregator.events["reconnects"] += 1
                log.warning("Valkey is away (%s); counters are kept, trying again in %.1f s", error, delay)
            self._turned["listen"] = time.monotonic()
            await self._pause(delay)
            delay = min(delay * 2, longest)

    async def _tick(self) -> None:
        last = time.monotonic()
        due = last + PERIOD_S
        while not self._stop.is_set():
            await self._pause(due - time.monotonic())
            now = time.monotonic()
            self._turned["tick"] = now
            await self._speak(now, seconds=now - last)
            last = now
            # A late frame covers a longer period; nothing is made up for afterwards.
            due = max(due + PERIOD_S, now + PERIOD_S / 2)

    async def _speak(self, now: float, *, seconds: float) -> None:
        at = time.time()
        self._seq += 1
        frame, totals = self.aggregator.frame(
            seq=self._seq, at=at, now=now, seconds=seconds, loop_age_s=now - self._turned["listen"]
        )
        self.rollups.add(at, totals)
        gauges = {f"age.{name}_s": age for name, age in self.loop_ages().items()}
        gauges |= {
            "queue.frames": len(self.valkey.waiting),
            "queue.rollups": len(self.rollups.waiting),
            "processes": len(self.aggregator.workers) + len(self.aggregator.gateways),
        }
        await self.valkey.deliver(frame, metrics_state(self.aggregator, frame, now=now, gauges=gauges))

    async def _economics(self) -> None:
        while not self._stop.is_set():
            try:
                self.aggregator.economics = await sync_to_async(_ask_economics)()
            except (DatabaseError, InterfaceError) as error:
                self.aggregator.events["economics_failed"] += 1
                log.warning("prices stay as they were (%s)", error)
            self._turned["economics"] = time.monotonic()
            await self._pause(ECONOMICS_S)

    async def _roll_up(self) -> None:
        condensed: datetime | None = None
        while not self._stop.is_set():
            written = await self.rollups.write()
            period = services.period_start(datetime.now(UTC), COARSE_S)
            if written and period != condensed:
                try:
                    await sync_to_async(services.rollups_condense)(now=datetime.now(UTC))
                    condensed = period
                except (DatabaseError, InterfaceError) as error:
                    self.aggregator.events["condense_failed"] += 1
                    log.warning("5 min rollups wait for the database (%s)", error)
            self._turned["rollups"] = time.monotonic()
            await self._pause(PERIOD_S if written else ROLLUP_RETRY_S)


def _ask_economics() -> Economics:
    close_old_connections()
    return load_economics()
