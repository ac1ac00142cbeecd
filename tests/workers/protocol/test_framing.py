"""Frames as bytes, and bytes that are none."""

from __future__ import annotations

import asyncio

import pytest

from workers import protocol
from workers.protocol import HEAD_BYTES, Ping, ProtocolError, Status, WorkerState

STATUS = Status(
    state=WorkerState.READY, step_age_s=0.5, running=1, waiting=2, waiting_tokens=3, blocks_total=4, blocks_used=5,
    blocks_cached=6, transfers=7,
)  # fmt: skip


def reader_of(data: bytes) -> asyncio.StreamReader:
    reader = asyncio.StreamReader()
    reader.feed_data(data)
    reader.feed_eof()
    return reader


async def test_frames_one_after_the_other() -> None:
    reader = reader_of(protocol.encode(STATUS) + protocol.encode(Ping(3)))
    assert await protocol.read_frame(reader) == STATUS
    assert await protocol.read_frame(reader) == Ping(3)
    assert await protocol.read_frame(reader) is None


@pytest.mark.parametrize("bit", range(8))
async def test_no_damaged_byte_is_taken_for_another_frame(bit: int) -> None:
    whole = protocol.encode(STATUS)
    for place in range(len(whole)):
        damaged = bytearray(whole)
        damaged[place] ^= 1 << bit
        with pytest.raises(ProtocolError):
            await protocol.read_frame(reader_of(bytes(damaged)))


async def test_a_frame_over_the_limit_is_not_read() -> None:
    whole = protocol.encode(STATUS)
    assert await protocol.read_frame(reader_of(whole), len(whole) - HEAD_BYTES) == STATUS
    reader = reader_of(whole)
    with pytest.raises(ProtocolError, match="over the limit"):
        await protocol.read_frame(reader, len(whole) - HEAD_BYTES - 1)
    assert await reader.read() == whole[HEAD_BYTES:]


async def test_a_frame_that_is_cut() -> None:
    with pytest.raises(ProtocolError, match="middle"):
        await protocol.read_frame(reader_of(protocol.encode(STATUS)[:-1]))
