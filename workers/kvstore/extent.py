"""The bytes of an extent: an immutable file that holds a run of consecutive blocks of one chain.

    magic "GALLEYKV" | u32 version | u32 header bytes | u32 CRC-32C of the header | header (msgpack) | payload

The payload holds the blocks one after the other, without gaps. Everything a reader must know to trust a block is in the
header: its hash (which covers tenant, tokens and numerics), its length and its CRC-32C. Whatever does not fit is an
`ExtentError`, which readers count and treat as a miss.
"""

from __future__ import annotations

import hashlib
import itertools
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NewType

import msgspec
from crc32c import crc32c

from workers.identity import BlockHash

ExtentId = NewType("ExtentId", bytes)
"""16 random bytes, drawn for each attempt to write: two writers never share a file."""

MAGIC: Final = b"GALLEYKV"
FORMAT_VERSION: Final = 1
PREAMBLE: Final = struct.Struct("<8sIII")
MAX_BLOCKS: Final = 4096
MAX_HEADER_BYTES: Final = 1 << 20
HASH_BYTES: Final = 32
PAGED: Final = "paged"

_DOMAIN_SIDECAR: Final = b"galley.sidecar.v1\0"
_DOMAIN_SALT_ID: Final = b"galley.salt.id.v1"


class ExtentError(Exception):
    """The file is not the extent it should be. `reason` is a short word for counters."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class ExtentHeader(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    extent_id: bytes
    fingerprint: str
    """`CacheIdentity.fingerprint()` of what computed the blocks."""
    salt_id: str
    retention_class: str
    """Class of the request that wrote it: a rebuilt index starts from it."""
    kind: str
    """`paged`, or the name of a sidecar."""
    unit_end: bool
    """Sidecars only: whether their block ends a unit."""
    depth: int
    """Index in the chain of the first block."""
    parent: bytes
    """Hash of the block before the first one; empty at depth 0. For sidecars the block they belong to."""
    written_us: int
    """Unix time in microseconds."""
    hashes: bytes
    """32 bytes for each block."""
    lengths: tuple[int, ...]
    checksums: tuple[int, ...]
    """CRC-32C of each block."""

    @property
    def blocks(self) -> int:
        return len(self.lengths)

    @property
    def payload_bytes(self) -> int:
        return sum(self.lengths)

    def block_hash(self, index: int) -> BlockHash:
        return BlockHash(self.hashes[index * HASH_BYTES : (index + 1) * HASH_BYTES])

    def short_hashes(self) -> bytes:
        """The 16-byte names under which the index knows the blocks, one after the other."""
        return short_names([self.block_hash(i) for i in range(self.blocks)])


@dataclass(frozen=True, slots=True)
class Layout:
    """A decoded header and where its blocks lie in the file."""

    header: ExtentHeader
    offsets: tuple[int, ...]
    """Position of each block in the file, and of the end: blocks + 1 numbers."""

    @property
    def file_bytes(self) -> int:
        return self.offsets[-1]


def short_name(block: bytes) -> bytes:
    """Index name of a block: 16 of its 32 bytes. The whole hash is compared when the extent is read."""
    return block[:16]


def short_names(chain: Sequence[bytes]) -> bytes:
    return b"".join([block[:16] for block in chain])


def salt_id(salt: bytes) -> str:
    """Public name of a tenant's salt, for headers, statistics and purges: says nothing about the salt itself."""
    return hashlib.blake2b(salt, digest_size=8, person=_DOMAIN_SALT_ID[:16]).hexdigest()


def sidecar_hash(block: BlockHash, kind: str) -> BlockHash:
    """Name of the sidecar `kind` (which carries its own version, such as `window.v1`) of a block."""
    raw = kind.encode()
    return BlockHash(hashlib.sha256(_DOMAIN_SIDECAR + struct.pack("<I", len(raw)) + raw + block).digest())


def checksum(data: bytes | bytearray | memoryview) -> int:
    """CRC-32C (Castagnoli); releases the interpreter lock for blocks of 32 KiB and more."""
    return crc32c(data)


def encode_header(header: ExtentHeader) -> bytes:
    """Everything before the payload."""
    body = msgspec.msgpack.encode(header)
    if len(body) > MAX_HEADER_BYTES or not 1 <= header.blocks <= MAX_BLOCKS:
        raise ValueError(f"an extent holds 1 to {MAX_BLOCKS} blocks, not {header.blocks}")
    return PREAMBLE.pack(MAGIC, FORMAT_VERSION, len(body), crc32c(body)) + body


def header_bytes(preamble: bytes) -> int:
    """Length of the header that follows the preamble. Raises ExtentError."""
    if len(preamble) < PREAMBLE.size:
        raise ExtentError("truncated", "shorter than a preamble")
    magic, version, length, _ = PREAMBLE.unpack_from(preamble)
    if magic != MAGIC:
        raise ExtentError("magic", "not an extent")
    if version != FORMAT_VERSION:
        raise ExtentError("version", f"extent format {version}, this release reads {FORMAT_VERSION}")
    if length > MAX_HEADER_BYTES:
        raise ExtentError("header", f"header of {length} bytes")
    return int(length)


def decode_header(raw: bytes) -> Layout:
    """Parse preamble and header (more bytes may follow). Raises ExtentError."""
    length = header_bytes(raw)
    body = raw[PREAMBLE.size : PREAMBLE.size + length]
    if len(body) != length:
        raise ExtentError("truncated", "shorter than its header")
    if crc32c(body) != PREAMBLE.unpack_from(raw)[3]:
        raise ExtentError("header", "the header's checksum is wrong")
    try:
        header = msgspec.msgpack.decode(body, type=ExtentHeader)
    except msgspec.MsgspecError as error:
        raise ExtentError("header", f"not a header: {error}") from error
    blocks = header.blocks
    if not 1 <= blocks <= MAX_BLOCKS or len(header.checksums) != blocks or len(header.hashes) != blocks * HASH_BYTES:
        raise ExtentError("header", "the header's lists do not fit each other")
    start = PREAMBLE.size + length
    offsets = tuple(itertools.accumulate(header.lengths, initial=start))
    return Layout(header, offsets)
