"""Readiness: a token that really comes through each route, asked for at most every couple of seconds."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable, Sequence

import msgspec

from controlplane.inference.catalog import Catalog, Route, Unavailable
from controlplane.inference.events import Output, RequestFailed
from controlplane.inference.limits import GatewayLimits
from controlplane.inference.requests import Generation, Work
from controlplane.inference.router import NoWorkers, Router
from workers.protocol import CacheScope, ErrorCode, Sampling

PROBE_TEXT = "ping"
PROBE_PRIORITY = -100


class RouteHealth(msgspec.Struct, kw_only=True):
    deployment: str
    model: str
    ready: bool
    reason: str = ""
    seconds: float | None = None
    """How long the token took."""


class Readiness(msgspec.Struct, kw_only=True):
    ready: bool
    reason: str = ""
    routes: list[RouteHealth]
    loops: dict[str, str] = {}
    """Background loops that fail, by name: told, but no reason to turn clients away."""


class ReadinessProbe:
    """Single flight: whoever asks while a probe runs waits for that one. `salt` is no tenant's."""

    def __init__(
        self,
        catalog: Catalog,
        router: Router,
        limits: GatewayLimits,
        *,
        salt: bytes,
        loop_problems: Callable[[], dict[str, str]],
    ) -> None:
        self._catalog = catalog
        self._router = router
        self._limits = limits
        self._salt = salt
        self._loop_problems = loop_problems
        self._last: Readiness | None = None
        self._last_at = 0.0
        self._flight: asyncio.Task[Readiness] | None = None

    async def check(self) -> Readiness:
        if self._last is not None and time.monotonic() - self._last_at < self._limits.ready_cache_s:
            return self._last
        if self._flight is None or self._flight.done():
            self._flight = asyncio.create_task(self._probe_all(), name="readiness")
        return await asyncio.shield(self._flight)

    async def _probe_all(self) -> Readiness:
        routes = [route for route in self._catalog.routes if route.wanted]
        results = await asyncio.gather(*(self._probe(route) for route in routes))
        self._last = self._verdict(results)
        self._last_at = time.monotonic()
        return self._last

    def _verdict(self, results: Sequence[RouteHealth]) -> Readiness:
        if not self._catalog.refreshed:
            reason = "the list of deployments has not been read yet"
        elif not results:
            reason = "nothing is deployed"
        else:
            failing = [result.deployment for result in results if not result.ready]
            reason = f"not ready: {', '.join(failing)}" if failing else ""
        return Readiness(ready=not reason, reason=reason, routes=list(results), loops=self._loop_problems())

    async def _probe(self, route: Route) -> RouteHealth:
        started = time.monotonic()
        try:
            async with asyncio.timeout(self._limits.ready_probe_s):
                await self._token(route)
            problem = ""
        except (Unavailable, NoWorkers) as error:
            problem = str(error)
        except RequestFailed as error:
            problem = f"{error.code}: {error.message}"
        except TimeoutError:
            problem = f"no token within {self._limits.ready_probe_s:g} s"
        return RouteHealth(
            deployment=route.deployment,
            model=route.model,
            ready=not problem,
            reason=problem,
            seconds=None if problem else round(time.monotonic() - started, 4),
        )

    async def _token(self, route: Route) -> None:
        """One greedy token on the route, ahead of the queue. Full queues are no failure: the workers answer."""
        model = self._catalog.model(route)
        wake = asyncio.Event()
        work = Work(
            request_id=f"probe-{uuid.uuid4().hex}",
            deployment=route.deployment,
            revision=route.revision,
            tokens=model.tokenizer.encode_foreign(PROBE_TEXT),
            # Two tokens where two workers take part: the second comes from decode.
            sampling=Sampling(temperature=0.0, max_tokens=2),
            cache=CacheScope(salt=self._salt),
            deadline=time.monotonic() + self._limits.ready_probe_s,
            priority=PROBE_PRIORITY,
        )
        generation = Generation(work, router=self._router, limits=self._limits, wake=wake, keep_restartable=True)
        generation.start()
        try:
            while True:
                wake.clear()
                while (event := generation.poll()) is not None:
                    if isinstance(event, RequestFailed) and event.code is not ErrorCode.QUEUE_FULL:
                        raise event
                    if isinstance(event, RequestFailed) or (isinstance(event, Output) and event.finish is not None):
                        return
                await wake.wait()
        finally:
            generation.close("probe ended")
