"""Preparing requests: threads of its own, shared fairly, bounded in number and time."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from controlplane.accounts.permissions import Principal, PrincipalKind
from controlplane.inference.errors import ApiError, invalid
from controlplane.inference.limits import GatewayLimits
from controlplane.inference.preparation import Preparation
from tests.controlplane.inference.conftest import eventually


def of(tenant: str, key: str = "1") -> Principal:
    return Principal(kind=PrincipalKind.KEY, id=key, label=f"key {key}", tenant=tenant)


class Bench:
    """Work that goes on until it is let go."""

    def __init__(self, **limits: Any) -> None:
        self.preparation = Preparation(replace(GatewayLimits(), **limits))
        self.go = threading.Event()
        self.running = 0
        self._lock = threading.Lock()

    def work(self) -> str:
        with self._lock:
            self.running += 1
        self.go.wait(20)
        return threading.current_thread().name

    def start(self, principal: Principal) -> asyncio.Task[str]:
        return asyncio.create_task(self.preparation.run(principal, self.work))


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench(prepare_threads=3)
    yield made
    made.go.set()
    made.preparation.close()


async def test_work_runs_on_threads_of_its_own(bench: Bench) -> None:
    bench.go.set()
    assert (await bench.preparation.run(of("a"), bench.work)).startswith("prepare")


async def test_one_tenant_leaves_a_thread_to_the_others(bench: Bench) -> None:
    greedy = [bench.start(of("a", key)) for key in "12345678"]
    await eventually(lambda: bench.running == 2)
    other = bench.start(of("b"))
    await eventually(lambda: bench.running == 3)
    assert bench.preparation.waiting == 9
    bench.go.set()
    await asyncio.gather(*greedy, other)
    assert bench.preparation.waiting == 0


async def test_a_turn_lasts_as_long_as_its_thread(bench: Bench) -> None:
    """Clients that leave do not free the threads that still work for them."""
    tasks = [bench.start(of("a")) for _ in range(2)]
    await eventually(lambda: bench.running == 2)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    third = bench.start(of("a"))
    await asyncio.sleep(0.05)
    assert bench.running == 2
    bench.go.set()
    assert await third


async def test_what_takes_too_long_is_503() -> None:
    bench = Bench(prepare_threads=1, prepare_wait_s=0.05)
    try:
        with pytest.raises(ApiError, match="in time") as caught:
            await bench.preparation.run(of("a"), bench.work)
        assert (caught.value.status, caught.value.retry_after_s) == (503, 1.0)
        assert bench.preparation.waiting == 0
    finally:
        bench.go.set()
        bench.preparation.close()


async def test_too_many_at_once_are_503() -> None:
    bench = Bench(prepare_threads=1, concurrent_requests=1)
    task = bench.start(of("a"))
    await eventually(lambda: bench.running == 1)
    with pytest.raises(ApiError, match="too many") as caught:
        await bench.preparation.run(of("b"), bench.work)
    assert caught.value.status == 503
    bench.go.set()
    await task
    bench.preparation.close()


async def test_refusals_of_the_work_are_passed_on(bench: Bench) -> None:
    def refuse() -> None:
        raise invalid("no")

    with pytest.raises(ApiError, match="no"):
        await bench.preparation.run(of("a"), refuse)
