"""The connection for blocks: a frame asks for some, each comes as head, bytes, tail (big-endian).

    head  u8 status, u32 position in the request; a status other than SENT is followed by the tail at once
    bytes `block_bytes`, as they lie in the arena
    tail  u64 generation found after the bytes were copied, u32 CRC-32C over (slot, generation asked for, bytes)

The CRC covers slot and generation, so that the right bytes of the wrong block do not pass. TCP's own checksum misses
about one damaged segment in 65,000, and memory on the way none of it sees.
"""

from __future__ import annotations

import enum
import socket
import struct

import crc32c

from workers import protocol
from workers.network.sockets import receive_into
from workers.protocol import Frame

HEAD = struct.Struct(">BI")
TAIL = struct.Struct(">QI")
_WHICH = struct.Struct(">IQ")
MAX_REQUEST_BYTES = 1024 * 1024
"""About 70,000 blocks: a batch has at most `puller.BATCH_BYTES` of them."""


class Answer(enum.IntEnum):
    SENT = 0
    STALE = 1
    """It has another owner already: no bytes follow, the tail has the generation found."""
    NO_SUCH_BLOCK = 2


def checksum(slot: int, generation: int, data: memoryview) -> int:
    """CRC-32C of a block and of which one it is; the GIL is released for large ones."""
    crc: int = crc32c.crc32c(data, crc32c.crc32c(_WHICH.pack(slot, generation)))
    return crc


def receive_frame(connection: socket.socket, until: float, *, limit: int = MAX_REQUEST_BYTES) -> Frame:
    """The next frame. Raises ProtocolError, ConnectionError, TimeoutError."""
    head = bytearray(protocol.HEAD_BYTES)
    receive_into(connection, memoryview(head), until)
    body = bytearray(protocol.body_bytes(head, limit))
    receive_into(connection, memoryview(body), until)
    return protocol.decode(head, body)
