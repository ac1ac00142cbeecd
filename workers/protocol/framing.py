"""Frames as bytes: big-endian u32 length and u32 CRC-32C of the body, then the body, msgpack.

The CRC is there for TCP, whose own checksum misses about one damaged segment in 65,000; it takes half a microsecond.
"""

from __future__ import annotations

import array
import asyncio
import struct
import sys
from typing import Final

import crc32c
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
_HEAD: Final = struct.Struct(">II")
HEAD_BYTES: Final = _HEAD.size

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
    """The frame's bytes, head included."""
    body = _encoder.encode(frame)
    if len(body) > MAX_FRAME_BYTES:
        raise ProtocolError(f"frame of {len(body)} bytes is over the limit of {MAX_FRAME_BYTES}")
    return _HEAD.pack(len(body), crc32c.crc32c(body)) + body


def body_bytes(head: bytes | bytearray, limit: int = MAX_FRAME_BYTES) -> int:
    """How long the body behind a head is. Raises ProtocolError for more than `limit`."""
    length: int = _HEAD.unpack(head)[0]
    if length > limit:
        raise ProtocolError(f"frame of {length} bytes is over the limit of {limit}")
    return length


def decode(head: bytes | bytearray, body: bytes | bytearray) -> Frame:
    """The frame of this head and body. Raises ProtocolError."""
    length, crc = _HEAD.unpack(head)
    if len(body) != length or crc32c.crc32c(body) != crc:
        raise ProtocolError("a frame was damaged on its way")
    try:
        return _decoder.decode(body)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise ProtocolError(f"not a frame: {error}") from error


async def read_frame(reader: asyncio.StreamReader, limit: int = MAX_FRAME_BYTES) -> Frame | None:
    """The next frame, or None when the peer closed between frames. Raises ProtocolError, also for a frame of more than
    `limit` bytes, of which none is read.
    """
    try:
        head = await reader.readexactly(HEAD_BYTES)
        return decode(head, await reader.readexactly(body_bytes(head, limit)))
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
