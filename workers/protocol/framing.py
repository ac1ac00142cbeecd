"""Frames as bytes: a 4-byte big-endian length, then msgpack."""

from __future__ import annotations

import array
import asyncio
import struct
import sys
from typing import Final

import msgspec

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
    Tokens,
)
from workers.protocol.greeting import Hello, Refused, Welcome
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
    Subscribe,
)

MAX_FRAME_BYTES: Final = 64 * 1024 * 1024
MAX_GREETING_BYTES: Final = 64 * 1024
"""Of the first frame each way, from somebody who may be anybody."""
_LENGTH: Final = struct.Struct(">I")

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
    | StateSectionPart
    | StateReady
    | OpenBlocks
    | BlocksOpen
    | ReadBlocks
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


async def read_frame(reader: asyncio.StreamReader, limit: int = MAX_FRAME_BYTES) -> Frame | None:
    """The next frame, or None when the peer closed between frames. Raises ProtocolError, also for a frame of more than
    `limit` bytes, of which none is read.
    """
    try:
        head = await reader.readexactly(_LENGTH.size)
        (length,) = _LENGTH.unpack(head)
        if length > limit:
            raise ProtocolError(f"frame of {length} bytes is over the limit of {limit}")
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
