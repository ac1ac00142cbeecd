"""The node agent: the supervisor's loop, the line to the fleet, and a heartbeat that says how old each of them is."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Sequence

import msgspec
import redis.asyncio
from redis.exceptions import RedisError

from workers.home import Home
from workers.kvstore.settings import StoreSettings
from workers.node import processes
from workers.node.endpoints import NodeNetwork
from workers.node.fleet_link import FleetLink
from workers.node.heartbeat import HEARTBEAT_TTL_S, AgentHeartbeat, heartbeat_key
from workers.node.records import Records, WantedState
from workers.node.supervisor import Supervisor
from workers.node.timing import Timing
from workers.valkey import async_client

logger = logging.getLogger(__name__)

STOP_S = 5.0


class NodeAgent:
    """Started and stopped with the Celery worker that it lives in. Stopping leaves every engine running."""

    def __init__(
        self,
        node: str,
        home: Home,
        valkey_url: str,
        *,
        store: StoreSettings | None = None,
        network: NodeNetwork | None = None,
        timing: Timing | None = None,
        command: Sequence[str] = processes.SERVE,
    ) -> None:
        self.node = node
        self.timing = timing or Timing()
        self.records = Records(home)
        self.fleet = FleetLink(node, home, self.timing, changed=self._wanted_read, agent_age_s=lambda: self.age_s)
        self.supervisor = Supervisor(
            node,
            self.records,
            valkey_url,
            self.fleet.report,
            self.fleet.removed,
            self.timing,
            command,
            store,
            network or NodeNetwork(),
        )
        self._valkey_url = valkey_url
        self._wanted = self._kept = self.records.read_wanted()
        self._started_at = time.time()
        self._turned_at = time.monotonic()
        self._turns = self._failures = 0
        self._thread = threading.Thread(target=self._run, name="agent", daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._wake = asyncio.Event()
        self._stopping = False

    def start(self) -> None:
        self._thread.start()
        self.fleet.start()
        logger.info("node agent of %s started", self.node)

    def stop(self) -> None:
        self._stopping = True
        self._wake_up()
        self._thread.join(STOP_S)
        self.fleet.stop(STOP_S)
        logger.info("node agent of %s stopped; its engines go on", self.node)

    def nudge(self) -> None:
        """Somebody changed what is wanted: look now."""
        self.fleet.nudge()

    @property
    def age_s(self) -> float:
        """Seconds since the loop last came round."""
        return time.monotonic() - self._turned_at

    # --- on the agent's thread -------------------------------------------------------------------------------

    def _run(self) -> None:
        asyncio.run(self._main())

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        heartbeat = asyncio.create_task(self._heartbeat())
        adopted = False
        while not self._stopping:
            self._turned_at = time.monotonic()
            self._turns += 1
            try:
                if not adopted:
                    self.supervisor.adopt()
                    adopted = True
                self.supervisor.turn(self._wanted)
            except Exception:  # the loop must not die of it: the next turn looks at everything afresh
                self._failures += 1
                logger.exception("a turn of the agent failed")
            self._wake.clear()
            try:
                async with asyncio.timeout(self.timing.turn_s):
                    await self._wake.wait()
            except TimeoutError:
                pass
        heartbeat.cancel()
        await asyncio.gather(heartbeat, return_exceptions=True)
        self.supervisor.close()

    def _wanted_read(self, wanted: WantedState) -> None:
        """On the fleet link's thread."""
        if wanted != self._wanted:
            self._wanted = wanted
            logger.info("wanted here: %s", ", ".join(worker.name for worker in wanted.workers) or "nothing")
            self._wake_up()
        if wanted != self._kept:
            try:
                self.records.write_wanted(wanted)
                self._kept = wanted
            except OSError as error:  # a full disk must not keep an order to stop from being followed
                self.fleet.failures += 1
                logger.error("what is wanted could not be kept, a restart would not know it; trying again: %s", error)

    def _wake_up(self) -> None:
        if self._loop is not None:
            try:
                self._loop.call_soon_threadsafe(self._wake.set)
            except RuntimeError:  # the loop has ended: there is nobody to wake
                logger.debug("the agent's loop has ended")

    async def _heartbeat(self) -> None:
        async with async_client(self._valkey_url) as valkey:
            while True:
                await self._beat(valkey)
                await asyncio.sleep(self.timing.heartbeat_s)

    async def _beat(self, valkey: redis.asyncio.Redis) -> None:
        beat = AgentHeartbeat(
            node=self.node,
            started_at=self._started_at,
            loop_age_s=self.age_s,
            fleet_age_s=time.monotonic() - self.fleet.turned_at,
            wanted_age_s=None if self.fleet.read_at is None else time.monotonic() - self.fleet.read_at,
            turns=self._turns,
            failures=self._failures + self.supervisor.faults + self.fleet.failures,
            workers=self.supervisor.running,
        )
        try:
            await valkey.set(heartbeat_key(self.node), msgspec.msgpack.encode(beat), ex=HEARTBEAT_TTL_S)
        except (RedisError, OSError) as error:
            logger.debug("no heartbeat: %s", error)
