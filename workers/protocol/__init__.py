"""The frames between gateways, prefill workers and decode workers (torch-free; decision 0002).

A frame is a length, a CRC and a msgpack body: one of the tagged structs here. One connection per
(gateway process, worker) and one per (decode worker, prefill worker) carries every request between the two;
`request_id` tells them apart. TCP connections set TCP_NODELAY. The first frame each way is the greeting
(`Hello`, answered by `Welcome` or `Refused`); a frame with another epoch than the receiver's is refused with
`stale_epoch`.

Times on the wire are durations in seconds (clocks of two hosts are never compared). Token ids travel as
little-endian int32 bytes (`pack_tokens`).

One module per connection: `gateway` (gateway or node agent, worker) and `transfer` (decode worker, prefill worker);
`greeting` opens either, `vocabulary` has what both speak of, `framing` turns frames into bytes.
"""

from __future__ import annotations

from workers.protocol.framing import (
    HEAD_BYTES,
    MAX_FRAME_BYTES,
    MAX_GREETING_BYTES,
    Frame,
    ProtocolError,
    body_bytes,
    decode,
    encode,
    pack_tokens,
    read_frame,
    unpack_tokens,
)
from workers.protocol.gateway import (
    Cancel,
    Decode,
    Drain,
    Failed,
    Ping,
    Pong,
    Prefill,
    Scheduled,
    Status,
    TokenDelta,
    TokenLogprobs,
    Tokens,
)
from workers.protocol.greeting import (
    PROTOCOL_VERSION,
    Hello,
    Refused,
    Welcome,
)
from workers.protocol.transfer import (
    Abort,
    ArenaOffer,
    BlocksOpen,
    BlocksReady,
    Credit,
    NoCredit,
    OpenBlocks,
    ReadBlocks,
    Release,
    Reserve,
    StateReady,
    StateSectionPart,
    StateSectionRef,
    Subscribe,
)
from workers.protocol.vocabulary import (
    Address,
    CacheScope,
    Endpoint,
    ErrorCode,
    Finish,
    PeerKind,
    RequestId,
    Role,
    Sampling,
    WorkerState,
    is_retryable,
)

__all__ = [
    "HEAD_BYTES",
    "MAX_FRAME_BYTES",
    "MAX_GREETING_BYTES",
    "PROTOCOL_VERSION",
    "Abort",
    "Address",
    "ArenaOffer",
    "BlocksOpen",
    "BlocksReady",
    "CacheScope",
    "Cancel",
    "Credit",
    "Decode",
    "Drain",
    "Endpoint",
    "ErrorCode",
    "Failed",
    "Finish",
    "Frame",
    "Hello",
    "NoCredit",
    "OpenBlocks",
    "PeerKind",
    "Ping",
    "Pong",
    "Prefill",
    "ProtocolError",
    "ReadBlocks",
    "Refused",
    "Release",
    "RequestId",
    "Reserve",
    "Role",
    "Sampling",
    "Scheduled",
    "StateReady",
    "StateSectionPart",
    "StateSectionRef",
    "Status",
    "Subscribe",
    "TokenDelta",
    "TokenLogprobs",
    "Tokens",
    "Welcome",
    "WorkerState",
    "body_bytes",
    "decode",
    "encode",
    "is_retryable",
    "pack_tokens",
    "read_frame",
    "unpack_tokens",
]
