from __future__ import annotations

import random

import msgspec
import pytest

from tests.workers.kvstore.factories import SALT, make_chain
from workers.kvstore.extent import (
    MAX_BLOCKS,
    PAGED,
    PREAMBLE,
    ExtentError,
    ExtentHeader,
    checksum,
    decode_header,
    encode_header,
    salt_id,
    short_names,
    sidecar_hash,
)


def make_header(blocks: int = 3) -> ExtentHeader:
    hashes = make_chain(blocks + 1)
    return ExtentHeader(
        extent_id=bytes(16),
        fingerprint="f",
        salt_id=salt_id(SALT),
        retention_class="agent",
        kind=PAGED,
        unit_end=False,
        depth=1,
        parent=hashes[0],
        written_us=1,
        hashes=b"".join(hashes[1:]),
        lengths=tuple(range(10, 10 + blocks)),
        checksums=(1,) * blocks,
    )


def test_headers_survive_the_file() -> None:
    header = make_header()
    raw = encode_header(header)
    layout = decode_header(raw + b"payload")
    assert layout.header == header
    assert layout.offsets == (len(raw), len(raw) + 10, len(raw) + 21, len(raw) + 33)
    assert header.short_hashes() == short_names(make_chain(4)[1:])


def test_every_damaged_byte_of_a_header_is_noticed() -> None:
    raw = bytearray(encode_header(make_header()))
    for position in range(len(raw)):
        raw[position] ^= 0x40
        with pytest.raises(ExtentError):
            decode_header(bytes(raw))
        raw[position] ^= 0x40


def test_every_truncated_header_is_noticed() -> None:
    raw = encode_header(make_header())
    for length in range(len(raw)):
        with pytest.raises(ExtentError, match="shorter"):
            decode_header(raw[:length])


def test_random_bytes_are_no_header(seeded: int) -> None:
    rng = random.Random(seeded)
    for _ in range(200):
        with pytest.raises(ExtentError):
            decode_header(rng.randbytes(rng.randrange(0, 200)))


def test_a_newer_format_is_not_read() -> None:
    raw = bytearray(encode_header(make_header()))
    raw[8] = 2
    with pytest.raises(ExtentError) as caught:
        decode_header(bytes(raw))
    assert caught.value.reason == "version"


def test_lists_that_do_not_fit_are_refused() -> None:
    body = msgspec.msgpack.encode(msgspec.structs.replace(make_header(), checksums=(1,)))
    raw = PREAMBLE.pack(b"GALLEYKV", 1, len(body), checksum(body)) + body
    with pytest.raises(ExtentError, match="fit"):
        decode_header(raw)


@pytest.mark.parametrize("blocks", [0, MAX_BLOCKS + 1])
def test_extents_are_bounded(blocks: int) -> None:
    with pytest.raises(ValueError, match="1 to"):
        encode_header(msgspec.structs.replace(make_header(), lengths=(1,) * blocks))


def test_the_checksum_is_crc32c() -> None:
    assert checksum(b"123456789") == 0xE3069283  # the check value of CRC-32C


def test_a_salt_id_says_nothing_about_the_salt() -> None:
    assert salt_id(SALT) != salt_id(SALT[::-1])
    assert SALT.hex() not in salt_id(SALT)
    assert len(salt_id(SALT)) == 16


def test_sidecars_have_names_of_their_own() -> None:
    block, other = make_chain(2)
    names = {
        block,
        sidecar_hash(block, "window.v1"),
        sidecar_hash(block, "window.v2"),
        sidecar_hash(other, "window.v1"),
    }
    assert len(names) == 4
