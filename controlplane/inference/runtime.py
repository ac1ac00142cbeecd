"""The gateway of this process: its connections, loops and what they share. Lives in the server's event loop."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
import weakref
from collections.abc import Callable, Coroutine, Sequence
from functools import cache
from typing import Any

from controlplane import valkey
from controlplane.caching.assignment import Assignment
from controlplane.config import home, secret_key, settings
from controlplane.inference.admission import Admission
from controlplane.inference.admission_metering import Metering
from controlplane.inference.catalog import Catalog, Route
from controlplane.inference.connection import Connection
from controlplane.inference.discovery import Discovery
from controlplane.inference.fleet_routes import read_routes
from controlplane.inference.health import ReadinessProbe
from controlplane.inference.limits import GatewayLimits
from controlplane.inference.loops import PeriodicLoop
from controlplane.inference.preparation import Preparation
from controlplane.inference.publisher import SnapshotPublisher
from controlplane.inference.router import Router
from controlplane.inference.stats import GatewayStats
from workers.home import Home
from workers.identity import tenant_salt
from workers.network.security import NO_SECURITY, LinkSecurity
from workers.spec import WorkerLease

log = logging.getLogger(__name__)

FIRST_LOOK_S = 3.0
"""How long the first request waits for the first reading of deployments and leases."""


class Gateway:
    """`start` once, `stop` once. Everything belongs to one event loop."""

    def __init__(
        self,
        *,
        home: Home,
        valkey_url: str,
        secret: bytes,
        routes: Callable[[], Sequence[Route]],
        limits: GatewayLimits | None = None,
        security: LinkSecurity = NO_SECURITY,
    ) -> None:
        self.limits = limits or GatewayLimits()
        self.name = f"{socket.gethostname()}-{os.getpid()}"
        self.started = int(time.time())
        self.stats = GatewayStats()
        self.connections: dict[str, Connection] = {}
        self.catalog = Catalog(home, routes)
        self.router = Router(self.connections.values)
        self.metering = Metering(home.journal, valkey_url=valkey_url, gateway=self.name, limits=self.limits)
        self.admission = Admission(self.limits, self.metering)
        self.preparation = Preparation(self.limits)
        self._secret = secret
        self._security = security
        self._salts: dict[str, bytes] = {}
        self._valkey = valkey.async_client(valkey_url, timeout_s=self.limits.valkey_wait_s)
        self.assignment = Assignment(self._valkey)
        self._discovery = Discovery(self._valkey, names=self._known_workers, found=self._found)
        publisher = SnapshotPublisher(self._valkey, self.stats, gateway=self.name, started=self.started)
        self.loops = (
            PeriodicLoop("catalog", self.limits.catalog_s, self.catalog.refresh),
            PeriodicLoop("discovery", self.limits.discovery_s, self._discover),
            PeriodicLoop("retention", self.limits.retention_s, self.assignment.refresh),
            PeriodicLoop("snapshots", self.limits.snapshot_s, publisher.publish),
            *self.metering.loops,
        )
        self.readiness = ReadinessProbe(
            self.catalog, self.router, self.limits, salt=self.salt("\0readiness"), loop_problems=self._loop_problems
        )
        self._tasks: set[asyncio.Task[None]] = set()
        self._looked = asyncio.Event()

    async def start(self) -> None:
        """Start the loops; returns when deployments and leases were looked at once, or after FIRST_LOOK_S."""
        self.metering.start()
        for loop in self.loops:
            self._spawn(loop.run(), f"gateway-{loop.name}")
        try:
            async with asyncio.timeout(FIRST_LOOK_S):
                await self._looked.wait()
        except TimeoutError:
            log.warning("deployments or leases could not be read yet; the gateway starts without")

    async def stop(self) -> None:
        for connection in self.connections.values():
            connection.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.preparation.close()
        await self.metering.stop()
        await self._valkey.aclose()

    def salt(self, tenant: str) -> bytes:
        """The cache salt of a tenant, derived from the installation's secret."""
        found = self._salts.get(tenant)
        if found is None:
            found = self._salts[tenant] = tenant_salt(secret=self._secret, tenant=tenant)
        return found

    # --- workers ---------------------------------------------------------------------------------------------------

    def _known_workers(self) -> set[str]:
        return {name for route in self.catalog.routes for name in route.workers} | set(self.connections)

    async def _discover(self) -> None:
        if not self.catalog.refreshed:  # the first turn of both loops: names first
            await asyncio.sleep(0)
        try:
            await self._discovery.read()
        finally:
            self._forget_gone()
        if self.catalog.refreshed and all(one.error or one.connected for one in self.connections.values()):
            self._looked.set()

    def _found(self, lease: WorkerLease) -> None:
        name = lease.address.worker
        known = self.connections.get(name)
        if known is not None:
            known.renew(lease)
            return
        connection = Connection(lease, gateway=self.name, limits=self.limits, security=self._security)
        self.connections[name] = connection
        self._spawn(connection.run(), f"worker-{name}")

    def _forget_gone(self) -> None:
        """A worker without connection whose lease is long gone. While Valkey is away leases only look gone."""
        if self.loops[1].problem:
            return
        now = time.monotonic()
        for name, connection in list(self.connections.items()):
            if not connection.connected and now - connection.lease_seen > self.limits.forget_s:
                log.info("worker %s is forgotten: no lease, no connection", name)
                connection.close()
                del self.connections[name]

    # --- tasks -----------------------------------------------------------------------------------------------------

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.critical("task %s ended with an error", task.get_name(), exc_info=error)

    def _loop_problems(self) -> dict[str, str]:
        return {loop.name: loop.problem for loop in self.loops if loop.problem}


class _Gateways:
    """One gateway per event loop: a server has one loop, a test run has many."""

    def __init__(self) -> None:
        self._by_loop: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Future[Gateway]]
        self._by_loop = weakref.WeakKeyDictionary()

    async def get(self) -> Gateway:
        loop = asyncio.get_running_loop()
        found = self._by_loop.get(loop)
        if found is None or (found.done() and found.exception() is not None):
            found = self._by_loop[loop] = asyncio.ensure_future(_start())
        return found.result() if found.done() else await asyncio.shield(found)

    def put(self, gateway: Gateway) -> None:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Gateway] = loop.create_future()
        future.set_result(gateway)
        self._by_loop[loop] = future

    def started(self) -> Gateway | None:
        found = self._by_loop.get(asyncio.get_running_loop())
        return found.result() if found is not None and found.done() and found.exception() is None else None

    async def stop(self) -> None:
        gateway = self.started()
        self._by_loop.pop(asyncio.get_running_loop(), None)
        if gateway is not None:
            await gateway.stop()


@cache
def gateways() -> _Gateways:
    return _Gateways()


async def current() -> Gateway:
    """The running gateway; the first caller starts it."""
    return await gateways().get()


async def _start() -> Gateway:
    gateway = Gateway(
        home=home(),
        valkey_url=settings().redis_url,
        secret=secret_key().encode(),
        routes=read_routes,
        security=settings().link_security,
    )
    await gateway.start()
    return gateway
