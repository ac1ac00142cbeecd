"""The frames between gateways (and node agents) and workers."""

from __future__ import annotations

import msgspec

from workers.protocol.vocabulary import (
    Address,
    CacheScope,
    Endpoint,
    ErrorCode,
    Finish,
    RequestId,
    Sampling,
    WorkerState,
)

# --- gateway to worker ---------------------------------------------------------------------------------------


class Prefill(msgspec.Struct, tag="prefill", kw_only=True):
    """Compute the prompt and sample the first token. With `decode` None (role both) go on decoding here."""

    request_id: RequestId
    epoch: int
    tokens: bytes
    sampling: Sampling
    cache: CacheScope
    decode: Address | None = None
    priority: int = 0
    """Smaller runs first."""
    deadline_s: float = 600.0
    """Seconds from receipt after which the request is ended with `deadline_exceeded`."""


class Decode(msgspec.Struct, tag="decode", kw_only=True):
    """Continue a request that `prefill` computes. Sent before `Prefill`; holds no blocks until prefill starts.

    On receipt the decode worker dials `prefill_endpoint` (once per prefill worker) and subscribes.
    """

    request_id: RequestId
    epoch: int
    tokens: bytes
    sampling: Sampling
    cache: CacheScope
    prefill: Address
    prefill_endpoint: Endpoint
    priority: int = 0
    deadline_s: float = 600.0


class Cancel(msgspec.Struct, tag="cancel", kw_only=True):
    """The client left, a stop string matched, or the deadline passed. Idempotent; unknown ids are ignored."""

    request_id: RequestId
    reason: str = ""


class Drain(msgspec.Struct, tag="drain", kw_only=True):
    """Take nothing new; finish what runs, transfer queues included."""

    deadline_s: float


class Ping(msgspec.Struct, tag="ping"):
    nonce: int


# --- worker to gateway ---------------------------------------------------------------------------------------


class Scheduled(msgspec.Struct, tag="scheduled", kw_only=True):
    """Prefill started. Disjoint token classes: pool_hit + store_hit + miss == prompt tokens; counted once."""

    request_id: RequestId
    pool_hit_tokens: int
    store_hit_tokens: int
    miss_tokens: int
    recomputed_tokens: int = 0
    """Hit tokens that ran again (a replay): hits for the bill, computed for capacity."""
    queue_s: float


class TokenLogprobs(msgspec.Struct, array_like=True):
    logprob: float
    top: list[tuple[int, float]]


class TokenDelta(msgspec.Struct, kw_only=True, omit_defaults=True):
    """New output tokens of one request. `index` is the output position of the first of them.

    A stop token is in `tokens` of the delta whose `finish` is STOP. `finish` is set on the last delta of the request.
    """

    request_id: RequestId
    index: int
    tokens: list[int]
    finish: Finish | None = None
    logprobs: list[TokenLogprobs] | None = None


class Tokens(msgspec.Struct, tag="tokens", kw_only=True):
    """Everything one engine step produced for one gateway connection."""

    deltas: list[TokenDelta]


class Failed(msgspec.Struct, tag="failed", kw_only=True):
    """The request ended without `finish`. `retryable`: the fault lies with this worker or its peer."""

    request_id: RequestId
    code: ErrorCode
    message: str
    retryable: bool = False


class Status(msgspec.Struct, tag="status", kw_only=True):
    """Sent to every gateway and agent connection once a second, also while the engine thread hangs."""

    state: WorkerState
    reason: str = ""
    """For a state that is not `ready`: what is being waited for."""
    step_age_s: float
    """Seconds since the engine loop last came round; it turns at least twice a second when idle."""
    running: int
    waiting: int
    waiting_tokens: int
    """Prompt tokens queued and not yet computed."""
    blocks_total: int
    blocks_used: int
    """Blocks referenced by running requests."""
    blocks_cached: int
    """Unreferenced blocks that still hold reusable prefixes."""
    transfers: int
    """Requests whose blocks wait for, or are in, transfer."""


class Pong(msgspec.Struct, tag="pong"):
    nonce: int
