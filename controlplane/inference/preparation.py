"""Work on the CPU that comes before a request is admitted: long prompts to be tokenized, grammars to be compiled.

It runs on threads of its own, so that nothing else of the process (prices, journals, models to be loaded) waits for it,
and no caller holds more than a share of them: whoever sends large schemas without end delays his own requests.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar
from weakref import WeakValueDictionary

from controlplane.accounts.permissions import Principal
from controlplane.inference.errors import overloaded
from controlplane.inference.limits import GatewayLimits

Result = TypeVar("Result")


class Preparation:
    """Of one event loop. `close` when it stops."""

    def __init__(self, limits: GatewayLimits) -> None:
        self._limits = limits
        self._pool = ThreadPoolExecutor(limits.prepare_threads, thread_name_prefix="prepare")
        self._share = max(limits.prepare_threads - 1, 1)
        self._turns: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()
        """By caller, for as long as he has something to prepare."""
        self.waiting = 0
        """Calls that have not returned."""

    async def run(self, principal: Principal, work: Callable[[], Result]) -> Result:
        """What `work` returns or raises. Raises ApiError (503) where too much waits, or it is not done in time."""
        if self.waiting >= self._limits.concurrent_requests:
            raise self._refusal("The gateway has too many requests to prepare; try again shortly.")
        self.waiting += 1
        deadline = asyncio.timeout(self._limits.prepare_wait_s)
        try:
            async with deadline:
                return await self._run(caller_of(principal), work)
        except TimeoutError as error:
            if not deadline.expired():
                raise  # of the work
            raise self._refusal("The request could not be prepared in time; try again shortly.") from error
        finally:
            self.waiting -= 1

    async def _run(self, caller: str, work: Callable[[], Result]) -> Result:
        turn = self._turns.setdefault(caller, asyncio.Semaphore(self._share))
        await turn.acquire()
        loop = asyncio.get_running_loop()

        def done(_: Future[Result]) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(turn.release)

        # The turn ends with the work and not with the wait for it: a thread cannot be stopped.
        future = self._pool.submit(contextvars.copy_context().run, work)
        future.add_done_callback(done)
        return await asyncio.wrap_future(future)

    def close(self) -> None:
        """What runs is left to end; what waits is cancelled."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _refusal(self, message: str) -> Exception:
        return overloaded(message, retry_after_s=self._limits.retry_after_s)


def caller_of(principal: Principal) -> str:
    """A tenant, whatever its keys: keys cost nothing."""
    return f"t:{principal.tenant}" if principal.tenant is not None else f"{principal.kind}:{principal.id}"
