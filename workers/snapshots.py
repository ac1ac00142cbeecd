"""Telemetry that processes publish once a second on Valkey pub/sub (torch-free): msgpack, channel `CHANNEL`.

Counters are cumulative since the process's start and keyed by (process, epoch): a reader that misses a snapshot
loses resolution, never tokens. Histograms are cumulative counts per bucket (Prometheus style, without the +Inf bucket's
duplicate: `counts[-1]` is everything above the last bound).
"""

from __future__ import annotations

import bisect
from typing import Final

import msgspec

from workers.identity import CacheIdentity
from workers.protocol import Address, Role, WorkerState

CHANNEL: Final = "galley:telemetry"

LATENCY_BOUNDS_S: Final = (
    0.001, 0.0025, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25,
    0.4, 0.6, 0.8, 1.0, 1.5, 2.5, 4.0, 6.0, 10.0, 20.0, 40.0, 80.0, 160.0,
)  # fmt: skip
"""Upper bounds in seconds, shared by every latency histogram."""


class Histogram(msgspec.Struct):
    """Counts per bucket of LATENCY_BOUNDS_S, one more for what lies above, and the sum in seconds."""

    counts: list[int] = msgspec.field(default_factory=lambda: [0] * (len(LATENCY_BOUNDS_S) + 1))
    total_s: float = 0.0

    def observe(self, seconds: float) -> None:
        self.counts[bisect.bisect_left(LATENCY_BOUNDS_S, seconds)] += 1
        self.total_s += seconds


class WorkerSnapshot(msgspec.Struct, tag="worker", kw_only=True):
    address: Address
    role: Role
    node: str
    deployment: str
    revision: str
    model: str
    seq: int
    state: WorkerState
    # gauges
    running: int
    waiting: int
    waiting_tokens: int
    blocks_total: int
    blocks_used: int
    blocks_cached: int
    transfers: int
    step_age_s: float
    # counters
    steps: int
    hit_tokens: int
    """Prompt tokens found in the pool or the store, counted once per request when it is scheduled."""
    miss_tokens: int
    computed_tokens: int
    """Rows that ran through the engine in prefill, replays included (capacity, not billing)."""
    output_tokens: int
    transferred_blocks: int
    transfer_skipped_blocks: int
    """Blocks that the decode worker already held."""
    preemptions: int
    finished: dict[str, int]
    """Requests ended here, by Finish or ErrorCode."""
    queue_s: Histogram
    prefill_s: Histogram
    """From the start of prefill to the first token."""
    step_s: Histogram
    transfer_s: Histogram
    """From the end of prefill to the start of decoding: what the client waits for the transfer."""
    gauges: dict[str, float] = {}
    """Every queue and every kind of wait by name: `queue.commands`, `hold.credit`, `pull.filling`, `age.status_s`..."""
    events: dict[str, int] = {}
    """Counters of what should be rare: `conservation_failures`, `stale_blocks`, `peers_dropped`..."""
    # the KV store
    store_hit_tokens: int = 0
    """The part of `hit_tokens` that came from the store; the rest was in the pool."""
    recomputed_tokens: int = 0
    """The part of `hit_tokens` that ran again (a replay): hits for the bill, computed for capacity."""
    short_tokens: int = 0
    """The part of `miss_tokens` of prompts shorter than one block: no cache could have held them."""
    rows_saved: list[int] = []
    """By layer: rows of `computed_tokens` that did not go through it, because only the tail of a prompt has to."""
    store_troubles: dict[str, str] = {}
    """What is wrong with the store as this worker sees it, and the reason (`kvstore.health.Trouble`)."""
    cache_identity: CacheIdentity | None = None
    """What its block hashes start from; None while the model is loading."""


class GatewaySnapshot(msgspec.Struct, tag="gateway", kw_only=True):
    """Latencies are the client's: TTFT from acceptance to the first token sent, TBT between output tokens."""

    gateway: str
    started: int
    """Unix seconds of the process's start: its epoch."""
    seq: int
    running: int
    """Requests that have received a token and are not finished."""
    waiting: int
    """Requests accepted that have not received a token yet."""
    hit_tokens: int
    miss_tokens: int
    output_tokens: int
    requests: dict[str, int]
    """Ended requests by finish reason, or error code."""
    ttft_s: Histogram
    tbt_s: Histogram
    e2e_s: Histogram
    decode_s: Histogram = msgspec.field(default_factory=Histogram)
    """From the first token sent to the end, of requests that had one."""


Snapshot = WorkerSnapshot | GatewaySnapshot

_decoder: msgspec.msgpack.Decoder[Snapshot] = msgspec.msgpack.Decoder(Snapshot)


def encode(snapshot: Snapshot) -> bytes:
    return msgspec.msgpack.encode(snapshot)


def decode(data: bytes) -> Snapshot:
    """Raises msgspec.DecodeError for anything else."""
    return _decoder.decode(data)
