"""A background loop that survives failures, says so once, and exports its age."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

log = logging.getLogger(__name__)


class PeriodicLoop:
    def __init__(self, name: str, interval_s: float, step: Callable[[], Awaitable[None]]) -> None:
        self.name = name
        self.failures = 0
        self.problem = ""
        """Of the last turn; empty where it went well."""
        self._interval_s = interval_s
        self._step = step
        self._turned = time.monotonic()

    @property
    def age_s(self) -> float:
        """Seconds since the loop last came round."""
        return time.monotonic() - self._turned

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self.turn()
            await asyncio.sleep(self._interval_s)

    async def turn(self) -> None:
        self._turned = time.monotonic()
        try:
            await self._step()
        except Exception as error:
            self.failures += 1
            problem = f"{type(error).__name__}: {error}"
            if not self.problem:
                log.warning("loop %s fails: %s", self.name, problem, exc_info=error)
            self.problem = problem
        else:
            if self.problem:
                log.info("loop %s works again", self.name)
            self.problem = ""
