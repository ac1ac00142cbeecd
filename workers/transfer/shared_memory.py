"""One host: the owner's arena is a memfd, passed over the unix socket and mapped read-only (no names, no orphans)."""

from __future__ import annotations

import asyncio
import fcntl
import mmap
import os
import socket
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from workers import protocol
from workers.network.endpoints import parse_endpoint
from workers.protocol import Address, ArenaOffer, Endpoint, Frame, Hello, Refused, RequestId, Welcome
from workers.transfer.base import (
    ArenaLike,
    BlockSource,
    Dialled,
    Offered,
    PeerUnreachable,
    Pull,
    StaleBlock,
    Transport,
)


class SharedMemory(Transport):
    """Copies run on one thread of their own, outside the GIL: neither the event loop nor the engine waits for them."""

    def __init__(self) -> None:
        self._copier = ThreadPoolExecutor(max_workers=1, thread_name_prefix="transfer-copy")

    async def offer(self, writer: asyncio.StreamWriter, arena: ArenaLike, peer: Address) -> Offered:
        frame = protocol.encode(
            ArenaOffer(header_bytes=arena.header_bytes, blocks_total=arena.blocks_total, block_bytes=arena.block_bytes)
        )
        writer.transport.set_write_buffer_limits(high=0)
        await writer.drain()  # descriptors go round the stream's buffer, which therefore has to be empty
        # The transport's own socket hides sendmsg; a duplicate shares its stream.
        with socket.socket(fileno=os.dup(writer.get_extra_info("socket").fileno())) as duplicate:
            if duplicate.family != socket.AF_UNIX:
                raise PeerUnreachable("shared memory needs a unix socket")
            sent = socket.send_fds(duplicate, [frame], [arena.fd])
        if sent != len(frame):
            raise PeerUnreachable("the arena's descriptor could not be sent in one piece")
        writer.transport.set_write_buffer_limits()
        return Mapped()

    async def dial(self, endpoint: Endpoint, hello: Hello) -> Dialled:
        try:
            scheme, address = parse_endpoint(endpoint)
        except ValueError as error:
            raise PeerUnreachable(str(error)) from error
        if scheme != "unix":
            raise PeerUnreachable(f"{endpoint} is no unix socket: shared memory needs one")
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.setblocking(False)
        received: list[int] = []
        try:
            loop = asyncio.get_running_loop()
            await loop.sock_connect(connection, address)
            await loop.sock_sendall(connection, protocol.encode(hello))
            welcome = await _receive(connection, received)
            if isinstance(welcome, Refused):
                raise PeerUnreachable(f"{endpoint} refused: {welcome.code}: {welcome.message}")
            if not isinstance(welcome, Welcome):
                raise PeerUnreachable(f"{endpoint} greeted with {type(welcome).__name__}")
            offer = await _receive(connection, received)
            if not isinstance(offer, ArenaOffer) or not received:
                raise PeerUnreachable(f"{endpoint} offered no arena ({type(offer).__name__})")
            source = MappedArena(offer, received[0], self._copier)
            reader, writer = await asyncio.open_unix_connection(sock=connection)
        except (OSError, protocol.ProtocolError) as error:
            connection.close()
            raise PeerUnreachable(f"{endpoint}: {error}") from error
        except BaseException:
            connection.close()
            raise
        finally:  # whatever came, also where the greeting ran out of time half-way; a mapping needs no descriptor
            for descriptor in received:
                os.close(descriptor)
        return Dialled(reader, writer, welcome, source)

    def close(self) -> None:
        self._copier.shutdown(wait=False, cancel_futures=True)


class Mapped(Offered):
    """A mapping cannot be taken back: generations guard what is read through it."""

    def withdraw(self) -> None:
        pass


class MappedArena(BlockSource):
    """The peer's arena, mapped. It outlives its owner: what was announced can still be copied after its death."""

    def __init__(self, offer: ArenaOffer, descriptor: int, copier: ThreadPoolExecutor) -> None:
        """`descriptor` stays the caller's."""
        size = offer.header_bytes + offer.blocks_total * offer.block_bytes
        if os.fstat(descriptor).st_size < size or offer.header_bytes < 8 * offer.blocks_total:
            raise PeerUnreachable("the offered arena is smaller than its description")
        if not _keeps_its_size(descriptor):
            raise PeerUnreachable("the offered arena could shrink under its readers: it is not sealed")
        mapped = mmap.mmap(descriptor, size, mmap.MAP_SHARED, mmap.PROT_READ)
        whole = np.frombuffer(mapped, dtype=np.uint8)
        self.block_bytes = offer.block_bytes
        self._generations = whole[: 8 * offer.blocks_total].view("<u8")
        self._blocks = whole[offer.header_bytes :].reshape(offer.blocks_total, offer.block_bytes)
        self._copier = copier

    async def read(self, request_id: RequestId, pulls: Sequence[Pull]) -> None:
        await asyncio.get_running_loop().run_in_executor(self._copier, self._copy, list(pulls))

    def _copy(self, pulls: list[Pull]) -> None:
        for pull in pulls:
            if not 0 <= pull.slot < len(self._blocks):
                raise StaleBlock(f"slot {pull.slot} is outside the peer's arena")
            # numpy lets go of the GIL here, a memoryview assignment would not
            np.copyto(np.frombuffer(pull.destination, dtype=np.uint8), self._blocks[pull.slot])
            # After the copy: a new owner's counter is raised before its first byte is written.
            found = int(self._generations[pull.slot])
            if found != pull.generation:
                raise StaleBlock(f"slot {pull.slot} has generation {found}, announced was {pull.generation}")

    def close(self) -> None:
        """The mapping goes with the last copy that uses it."""


def _keeps_its_size(descriptor: int) -> bool:
    """Reading a mapped page past the end of its file would end the process. Systems without seals cannot say."""
    if not hasattr(fcntl, "F_GET_SEALS"):
        return True
    return bool(fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK)


async def _receive(connection: socket.socket, received: list[int]) -> Frame:
    """The next frame; descriptors that ride on it are appended to `received`, whose owner closes them whatever
    happens. Reads not one byte more: the stream goes on elsewhere.
    """
    head = await _receive_exactly(connection, protocol.HEAD_BYTES, received)
    return protocol.decode(head, await _receive_exactly(connection, protocol.body_bytes(head), received))


async def _receive_exactly(connection: socket.socket, count: int, received: list[int]) -> bytes:
    data = bytearray()
    while len(data) < count:
        try:
            chunk, descriptors, _flags, _ = socket.recv_fds(connection, count - len(data), 1)
        except BlockingIOError:
            await _readable(connection)
            continue
        received.extend(descriptors)
        if not chunk:
            raise protocol.ProtocolError("the peer closed while greeting")
        data += chunk
    return bytes(data)


async def _readable(connection: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()

    def wake() -> None:
        if not ready.done():
            ready.set_result(None)

    loop.add_reader(connection, wake)
    try:
        await ready
    finally:
        loop.remove_reader(connection)
