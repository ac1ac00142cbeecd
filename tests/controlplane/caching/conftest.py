"""An empty store for each test: the index is emptied by `valkey_url`, the folder here."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest

from controlplane.caching import tending
from controlplane.config import home


@pytest.fixture
def empty_store(valkey_url: str) -> Iterator[str]:
    """URL of the index."""
    shutil.rmtree(home().kvstore, ignore_errors=True)
    yield valkey_url
    if tending.tender.cache_info().currsize:
        tending.tender().close()
        tending.tender.cache_clear()
    shutil.rmtree(home().kvstore, ignore_errors=True)
