"""kill -9 of writers at random points: no wrong byte is ever served, and what they left behind is cleaned up."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from tests.workers.kvstore.factories import StoreFactory, make_chain
from tests.workers.kvstore.killed_writer import BLOCKS, CHAINS, block_bytes
from workers.identity import BlockHash
from workers.kvstore.files import TEMPORARY_LIFE_S

pytestmark = pytest.mark.integration

KILLS = 100
AT_ONCE = 2


@pytest.fixture
def nursery(stores: StoreFactory) -> Iterator[subprocess.Popen[str]]:
    """Forks a writer for each seed on its input and tells its process id."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.workers.kvstore.killed_writer", str(stores.root), stores.url, stores.namespace],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        yield process
        assert process.stdin is not None
        process.stdin.close()


def start_writer(nursery: subprocess.Popen[str], seed: int) -> int:
    assert nursery.stdin is not None
    assert nursery.stdout is not None
    nursery.stdin.write(f"{seed}\n")
    nursery.stdin.flush()
    return int(nursery.stdout.readline())


@pytest.mark.timeout(600)
def test_a_hundred_killed_writers(stores: StoreFactory, nursery: subprocess.Popen[str], seeded: int) -> None:
    rng = random.Random(seeded)
    reader = stores.open()
    chains = [make_chain(BLOCKS, start=1000 * n) for n in range(CHAINS)]
    read = 0

    def read_some(blocks: list[BlockHash]) -> int:
        with reader.get_run(blocks) as run:
            for data, block in zip(run.blocks, blocks, strict=False):
                assert bytes(data) == block_bytes(block), "a wrong byte was served"
            return len(run.blocks)

    for _ in range(KILLS // AT_ONCE):
        writers = [start_writer(nursery, rng.randrange(2**31)) for _ in range(AT_ONCE)]
        until = time.monotonic() + rng.uniform(0, 0.3)
        while time.monotonic() < until:
            read += read_some(rng.choice(chains))
        for writer in writers:
            os.kill(writer, signal.SIGKILL)
    read += sum(read_some(blocks) for blocks in chains)
    assert read > 0
    report = reader.upkeep.verify(reader.maintenance.store_id, repair=True)
    assert report.corrupt == []
    assert report.missing == []
    assert sum(read_some(blocks) for blocks in chains) > 0
    # temporary files: nobody writes them any more; an hour later (their age is the file system's) none is left
    assert TEMPORARY_LIFE_S < 3600
    left = len(list(reader.root.temporary.iterdir()))
    assert reader.root.clean_temporary(older_than_s=-1) == left
    assert not list(reader.root.temporary.iterdir())
