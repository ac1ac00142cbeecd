"""The frames between gateways, prefill workers and decode workers (torch-free; decision 0002).

A frame is a 4-byte big-endian length and a msgpack body: one of the tagged structs below. One connection per
(gateway process, worker) and one per (decode worker, prefill worker) carries every request between the two;
`request_id` tells them apart. TCP connections set TCP_NODELAY. The first frame each way is the greeting
(`Hello`, answered by `Welcome` or `Refused`); a frame with another epoch than the receiver's is refused with
`stale_epoch`.

Times on the wire are durations in seconds (clocks of two hosts are never compared). Token ids travel as
little-endian int32 bytes (`pack_tokens`).
"""

from __future__ import annotations

import array
import asyncio
import enum
import struct
import sys
from typing import Final, NewType

import msgspec

PROTOCOL_VERSION: Final = 1
MAX_FRAME_BYTES: Final = 64 * 1024 * 1024
_LENGTH: Final = struct.Struct(">I")

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


class CacheScope(msgspec.Struct, frozen=True, kw_only=True):
    """Whose prefixes may be reused: the salt is derived on the server from the tenant, never sent by a client."""

    salt: bytes
    retention_class: str = "chat"


# --- greeting, any connection -------------------------------------------------------------------------------


class Hello(msgspec.Struct, tag="hello", kw_only=True):
    version: int = PROTOCOL_VERSION
    peer: str
    """Who calls: a gateway process's name, or `str(Address)` of a worker."""
    kind: PeerKind
    expect: Address | None = None
    """Whom the caller believes to reach; another epoch is refused."""
    secret: str = ""
    """Shared secret for TCP endpoints; unix sockets are protected by their folder."""


class Welcome(msgspec.Struct, tag="welcome", kw_only=True):
    version: int = PROTOCOL_VERSION
    address: Address
    role: Role
    state: WorkerState
    model: str
    revision: str
    """Hash of the revision's specification: only workers of equal revision exchange blocks."""
    block_identity: str
    """Fingerprint of all fields of block identity except tenant and tokens (workers/identity.py)."""
    block_tokens: int
    max_context: int
    max_queue: int


class Refused(msgspec.Struct, tag="refused", kw_only=True):
    """The greeting failed; the connection closes after this frame."""

    code: ErrorCode
    message: str


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


# --- decode worker to prefill worker -------------------------------------------------------------------------


class Subscribe(msgspec.Struct, tag="subscribe", kw_only=True):
    """The decode worker knows of this request and will pull it."""

    request_id: RequestId
    epoch: int


class Credit(msgspec.Struct, tag="credit", kw_only=True):
    """Room for the whole request is set aside; the first `have_blocks` blocks are already here, and pinned."""

    request_id: RequestId
    have_blocks: int


class NoCredit(msgspec.Struct, tag="no_credit", kw_only=True):
    """No room now; ask again after `retry_after_s`."""

    request_id: RequestId
    reason: str
    retry_after_s: float


class Release(msgspec.Struct, tag="release", kw_only=True):
    """Every block and state section was copied and verified, or (in answer to `Abort`) nothing is copied any more.

    Either way prefill may free them.
    """

    request_id: RequestId


class Abort(msgspec.Struct, tag="abort", kw_only=True):
    """Either side gives the transfer up. The receiver frees its side and tells its gateway."""

    request_id: RequestId
    code: ErrorCode
    message: str


# --- prefill worker to decode worker -------------------------------------------------------------------------


class ArenaOffer(msgspec.Struct, tag="arena", kw_only=True):
    """The memory blocks are pulled from. Over a unix socket one file descriptor (memfd) rides on this frame.

    The arena is `blocks_total` generation counters (little-endian u64, 64-byte aligned region of `header_bytes`)
    and then `blocks_total` blocks of `block_bytes`. A counter changes whenever its block is given to another owner;
    the puller compares it after copying.
    """

    header_bytes: int
    blocks_total: int
    block_bytes: int


class Reserve(msgspec.Struct, tag="reserve", kw_only=True):
    """Prefill of this request is about to start: asks for `Credit`."""

    request_id: RequestId


class BlocksReady(msgspec.Struct, tag="blocks", kw_only=True):
    """Blocks [first, first + len(slots)) of the request hold their final bytes."""

    request_id: RequestId
    first: int
    slots: list[int]
    generations: list[int]


class StateSectionRef(msgspec.Struct, kw_only=True):
    """One named, versioned state section, its bytes inline (sections of the default model are small or absent)."""

    name: str
    version: int
    data: bytes


class StateReady(msgspec.Struct, tag="state", kw_only=True):
    """Prefill is complete: what decode needs beside the blocks. Sent after the last `BlocksReady`."""

    request_id: RequestId
    first_token: int
    sections: list[StateSectionRef]
    finish: Finish | None = None
    """Set where the first token ended the request: decode gives its room back and says nothing to the gateway."""


Frame = (
    Hello
    | Welcome
    | Refused
    | Prefill
    | Decode
    | Cancel
    | Drain
    | Ping
    | Scheduled
    | Tokens
    | Failed
    | Status
    | Pong
    | Subscribe
    | Credit
    | NoCredit
    | Release
    | Abort
    | ArenaOffer
    | Reserve
    | BlocksReady
    | StateReady
)

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Frame] = msgspec.msgpack.Decoder(Frame)


class ProtocolError(Exception):
    """The peer sent something that is not a frame; the connection cannot be used any further."""


def encode(frame: Frame) -> bytes:
    """The frame's bytes, length included."""
    body = _encoder.encode(frame)
    if len(body) > MAX_FRAME_BYTES:
        raise ProtocolError(f"frame of {len(body)} bytes is over the limit of {MAX_FRAME_BYTES}")
    return _LENGTH.pack(len(body)) + body


def decode(body: bytes | memoryview) -> Frame:
    """The frame in `body` (length prefix already taken off). Raises ProtocolError."""
    try:
        return _decoder.decode(body)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise ProtocolError(f"not a frame: {error}") from error


async def read_frame(reader: asyncio.StreamReader) -> Frame | None:
    """The next frame, or None when the peer closed between frames. Raises ProtocolError."""
    try:
        head = await reader.readexactly(_LENGTH.size)
        (length,) = _LENGTH.unpack(head)
        if length > MAX_FRAME_BYTES:
            raise ProtocolError(f"frame of {length} bytes is over the limit of {MAX_FRAME_BYTES}")
        return decode(await reader.readexactly(length))
    except asyncio.IncompleteReadError as error:
        if not error.partial:
            return None
        raise ProtocolError("connection closed in the middle of a frame") from error


def pack_tokens(tokens: list[int]) -> bytes:
    """Token ids as little-endian int32 bytes. Raises OverflowError for ids outside int32."""
    packed = array.array("i", tokens)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def unpack_tokens(data: bytes) -> list[int]:
    """Inverse of `pack_tokens`. Raises ProtocolError where the length is no multiple of 4."""
    if len(data) % 4:
        raise ProtocolError(f"{len(data)} bytes are no int32 token ids")
    packed = array.array("i", data)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tolist()
