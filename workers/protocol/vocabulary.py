"""The words that every frame uses: who speaks, in which state, about which request, and how a request ends."""

from __future__ import annotations

import enum
from typing import Final, NewType

import msgspec

RequestId = NewType("RequestId", str)
Endpoint = NewType("Endpoint", str)
"""`unix:/path/to.sock` or `tcp:host:port`."""


class Role(enum.StrEnum):
    PREFILL = "prefill"
    DECODE = "decode"
    BOTH = "both"


class PeerKind(enum.StrEnum):
    GATEWAY = "gateway"
    WORKER = "worker"
    AGENT = "agent"


class WorkerState(enum.StrEnum):
    """What a worker says of itself. Only `READY` takes new requests."""

    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"


class Finish(enum.StrEnum):
    """Why a request ended; names of the chat completions API, plus `cancelled`."""

    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"
    INSUFFICIENT_SYSTEM_RESOURCE = "insufficient_system_resource"


class ErrorCode(enum.StrEnum):
    STALE_EPOCH = "stale_epoch"
    VERSION = "protocol_version"
    NOT_READY = "not_ready"
    QUEUE_FULL = "queue_full"
    CONTEXT_LENGTH = "context_length_exceeded"
    INVALID = "invalid_request"
    PEER_LOST = "peer_lost"
    TRANSFER = "transfer_failed"
    DEADLINE = "deadline_exceeded"
    OUT_OF_BLOCKS = "out_of_blocks"
    CANCELLED = "cancelled"
    """Between workers only: the other side's gateway gave the request up."""
    INTERNAL = "internal"


_RETRYABLE: Final = frozenset(
    {
        ErrorCode.STALE_EPOCH,
        ErrorCode.NOT_READY,
        ErrorCode.QUEUE_FULL,
        ErrorCode.PEER_LOST,
        ErrorCode.TRANSFER,
        ErrorCode.OUT_OF_BLOCKS,
        ErrorCode.INTERNAL,
    }
)


def is_retryable(code: ErrorCode) -> bool:
    """Whether the fault lies with this worker or its peer, so that another pair may do better."""
    return code in _RETRYABLE


class Address(msgspec.Struct, frozen=True):
    """(worker, epoch, rank): the epoch changes at each start, so an address never means two processes."""

    worker: str
    epoch: int
    rank: int = 0

    def __str__(self) -> str:
        return f"{self.worker}@{self.epoch}.{self.rank}"


class Sampling(msgspec.Struct, frozen=True, kw_only=True):
    """How tokens are drawn. A draw is a function of (seed, position, purpose) alone.

    `temperature` 0 is greedy. `top_k` 0 and `top_p` 1 and `min_p` 0 switch those filters off. Generation ends
    after `max_tokens`, or on a token of `stop_token_ids` (which is reported, and not part of the text).
    Stop *strings* are the gateway's (it sees text) and end in a `Cancel`.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int = 0
    max_tokens: int = 16
    stop_token_ids: tuple[int, ...] = ()
    logprobs: int | None = None
    """Number of alternatives to report beside each token's log-probability; None reports nothing."""
    logit_bias: dict[int, float] = {}
    """Added to the logits of these tokens."""
    presence_penalty: float = 0.0
    """Subtracted from the logit of every token that the output holds already."""
    frequency_penalty: float = 0.0
    """Subtracted as often as the output holds the token."""
    grammar: str = ""
    """What the output must follow (`workers.constraints`); empty leaves it free."""


class CacheScope(msgspec.Struct, frozen=True, kw_only=True):
    """Whose prefixes may be reused: the salt is derived on the server from the tenant, never sent by a client."""

    salt: bytes
    retention_class: str = "chat"
