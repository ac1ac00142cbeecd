"""Writers for `test_kill` to kill: each opens the store and writes chains for ever, in a random order of a known set.

The process that is started imports everything once and forks a writer for each seed it reads.
"""

from __future__ import annotations

import os
import random
import signal
import sys
from pathlib import Path

from tests.workers.kvstore.factories import IDENTITY, SALT, StoreFactory, make_chain, payload
from workers.kvstore.clock import ManualClock

CHAINS = 64
BLOCKS = 12
BLOCK_BYTES = 40_000


def block_bytes(block: bytes) -> bytes:
    return payload(block, BLOCK_BYTES)  # type: ignore[arg-type]


def write_for_ever(root: str, url: str, namespace: str, seed: int) -> None:
    rng = random.Random(seed)
    factory = StoreFactory(Path(root), url, namespace, ManualClock(), rng)
    store = factory.open(extent_bytes=3 * BLOCK_BYTES, write_queue=4)
    print(os.getpid(), flush=True)  # noqa: T201 - tells the test whom to kill
    while True:
        blocks = make_chain(BLOCKS, start=1000 * rng.randrange(CHAINS))
        end = rng.randrange(1, BLOCKS + 1)
        store.put_run(
            blocks[:end],
            0,
            [block_bytes(block) for block in blocks[:end]],
            salt=SALT,
            fingerprint=IDENTITY.fingerprint(),
            retention_class="agent",
        )
        if rng.random() < 0.3:
            store.flush()
        if rng.random() < 0.1:  # room to write again
            store.index.forget([run.extent for run in store.find(blocks).runs], reason="test")
            store.sweep()


def main() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for seed in sys.stdin:
        if os.fork() == 0:
            write_for_ever(*sys.argv[1:], seed=int(seed))


if __name__ == "__main__":
    main()
