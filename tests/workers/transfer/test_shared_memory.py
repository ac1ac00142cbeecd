"""Descriptors and mappings between two ends in one process."""

from __future__ import annotations

import asyncio
import os
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.workers.fake_engine import FakeArena
from workers import protocol
from workers.protocol import Address, ArenaOffer, Endpoint, Hello, PeerKind, Role, Welcome, WorkerState
from workers.transfer.base import PeerUnreachable
from workers.transfer.shared_memory import MappedArena, SharedMemory

HELLO = Hello(peer="d@1.0", kind=PeerKind.WORKER)
WELCOME = Welcome(
    address=Address(worker="p", epoch=1), role=Role.PREFILL, state=WorkerState.READY, model="m", revision="r",
    block_identity="i", block_tokens=4, max_context=16, max_queue=1,
)  # fmt: skip


def offer_of(arena: FakeArena) -> ArenaOffer:
    return ArenaOffer(header_bytes=arena.header_bytes, blocks_total=arena.blocks_total, block_bytes=arena.block_bytes)


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


async def test_a_greeting_that_stops_half_way_leaves_no_descriptor(tmp_path: Path) -> None:
    arena, path = FakeArena(4), str(tmp_path / "p.sock")
    offered = asyncio.Event()

    async def half_a_greeting(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await protocol.read_frame(reader)
        frame = protocol.encode(offer_of(arena))
        with socket.socket(fileno=os.dup(writer.get_extra_info("socket").fileno())) as duplicate:
            socket.send_fds(duplicate, [protocol.encode(WELCOME) + frame[:-1]], [arena.fd])
        offered.set()
        await reader.read()
        writer.close()

    server = await asyncio.start_unix_server(half_a_greeting, path)
    transport = SharedMemory()
    before = open_descriptors()
    dialling = asyncio.create_task(transport.dial(Endpoint(f"unix:{path}"), HELLO))
    await offered.wait()
    await asyncio.sleep(0.1)  # it reads what came, and waits for the rest
    dialling.cancel()
    await asyncio.gather(dialling, return_exceptions=True)
    server.close()
    await server.wait_closed()
    async with asyncio.timeout(20):
        while open_descriptors() > before:  # noqa: ASYNC110 - the other end closes its own, some turns later
            await asyncio.sleep(0.01)
    transport.close()


def test_an_arena_that_could_shrink_is_not_read() -> None:
    arena = FakeArena(4)
    size = arena.header_bytes + 4 * arena.block_bytes
    unsealed = os.memfd_create("unsealed", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(unsealed, size)
    copier = ThreadPoolExecutor(1)
    MappedArena(offer_of(arena), arena.fd, copier)
    with pytest.raises(PeerUnreachable, match="shrink"):
        MappedArena(offer_of(arena), unsealed, copier)
    os.close(unsealed)
    copier.shutdown()
