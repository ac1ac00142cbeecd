"""What a worker process is told at its start (torch-free): written by the node agent, read by `workers.serve`."""

from __future__ import annotations

import enum

import msgspec

from workers.kvstore.settings import StoreSettings
from workers.network.security import LinkSecurity
from workers.protocol import Address, Endpoint, Role


class WeightFormat(enum.StrEnum):
    """How the weights of linear layers lie in memory while they are used."""

    FP32 = "fp32"
    BF16 = "bf16"
    W8 = "w8"
    """int8 with one scale per output row; inputs keep 13 bits of their row's largest value, or more."""
    W8A8 = "w8a8"
    """The same, and inputs are int8 with one scale per row: no row's result depends on its neighbours."""


class PrefillTrim(enum.StrEnum):
    """What prefill does with the prompt's rows before its tail, in layers that only the tail needs."""

    OFF = "off"
    """Every layer computes every row."""
    MASK = "mask"
    """Every row is computed, and the tail sees what it would see under `compact`: for comparison."""
    COMPACT = "compact"
    """They are left out. Models whose layers all need every row are not affected by any of the three."""


class EngineSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Part of a revision's immutable specification; changing any of them makes a new revision."""

    weight_format: WeightFormat = WeightFormat.W8
    """The fastest within 1 % of fp32's perplexity (`benchmarks/perplexity.py`, decision 0016)."""
    batch_invariant: bool = False
    """Results equal to the bit whatever shares the batch; slower."""
    prefill_trim: PrefillTrim = PrefillTrim.COMPACT
    """Not part of block identity: it decides about layers that write no paged rows."""
    pool_blocks: int = 2048
    """Blocks in the pool, at the model's tokens per block."""
    max_context: int | None = None
    """Tokens per request, prompt and output; None takes the model's."""
    max_batch_tokens: int = 512
    """Token budget of one step (chunked prefill)."""
    max_running: int = 64
    max_queue: int = 256
    """Requests waiting beyond which new ones are refused with `queue_full`."""
    output_reserve_tokens: int = 256
    """Output tokens whose room is set aside when a request starts; longer answers take blocks as they go."""
    spool_mib: int = 1024
    """Memory for the blocks of requests that step aside while the pool is full."""


class TransferChoice(enum.StrEnum):
    """How a decode worker reaches the blocks of prefill workers that listen on TCP."""

    AUTO = "auto"
    """Shared memory where both are on one host and the socket can be reached, else TCP."""
    SHARED_MEMORY = "shared_memory"
    TCP = "tcp"


class WorkerNetwork(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a worker needs beside its endpoint where that is `tcp:` (docs/operations/network.md)."""

    listen: Endpoint | None = None
    """What is bound, where that is not the endpoint itself."""
    local: Endpoint | None = None
    """A unix socket beside the TCP endpoint, for the node agent and for decode workers of this host."""
    security: LinkSecurity = LinkSecurity()
    transfer: TransferChoice = TransferChoice.AUTO


class WorkerSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One rank of one worker. `python -m workers.serve SPEC.json` runs it."""

    address: Address
    role: Role
    node: str
    deployment: str
    revision: str
    model: str
    model_path: str
    engine: EngineSettings
    endpoint: Endpoint
    """Where gateways and decode workers connect, as they dial it."""
    valkey_url: str
    """For the discovery lease and telemetry only; the worker serves without it."""
    device: str = "cpu"
    threads: int = 1
    drain_deadline_s: float = 30.0
    heartbeat_s: float = 1.0
    network: WorkerNetwork = WorkerNetwork()
    store: StoreSettings | None = None
    """The KV store; None: prefixes live in the pool alone."""


class WorkerLease(msgspec.Struct, frozen=True, kw_only=True):
    """Discovery record in Valkey, msgpack, key `lease_key(worker)`, refreshed by the worker, expiring by itself."""

    address: Address
    role: Role
    node: str
    deployment: str
    revision: str
    model: str
    endpoint: Endpoint
    pid: int


LEASE_TTL_S = 10
LEASE_PREFIX = "galley:worker:"
LEASE_INDEX = "galley:workers"
"""Sorted set of the names of workers that have, or lately had, a lease; the score is when it was last renewed (unix
seconds). Written with each renewal, so it is complete a second after Valkey came back empty."""
LEASE_INDEX_KEPT_S = 600.0
"""Names that were not renewed for so long are dropped from it by whoever reads; more than any clocks differ."""


def lease_key(worker: str) -> str:
    return f"{LEASE_PREFIX}{worker}"
