"""Blocks from an arena to another over real sockets, and what may happen to them on the way."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import crc32c
import msgspec
import pytest

from tests.workers.certificates import mutual_tls, secret_file
from tests.workers.fake_engine import FakeArena
from tests.workers.meddler import Meddler
from workers import protocol
from workers.network.endpoints import tcp_endpoint
from workers.network.handshake import Purpose
from workers.network.security import LinkSecurity, Plaintext
from workers.network.server import TcpServer
from workers.network.tls import Contexts
from workers.protocol import Address, ArenaOffer, BlocksOpen, ErrorCode, OpenBlocks, ReadBlocks, Refused, RequestId
from workers.transfer.base import PeerUnreachable, Pull, StaleBlock, TransferError
from workers.transfer.deadlines import Deadlines
from workers.transfer.tcp.owner import MAX_UNPROVEN, BlockOwner, Ticket
from workers.transfer.tcp.source import WAY, DamagedBlock, RemoteArena
from workers.transfer.tcp.wire import HEAD, MAX_REQUEST_BYTES

BLOCKS = 8
PREFILL, DECODE = Address(worker="p", epoch=7), Address(worker="d", epoch=3)
NAME = RequestId("a")
LOOPBACK = LinkSecurity(plaintext=Plaintext.LOOPBACK)
OPENING_BYTES = len(protocol.encode(BlocksOpen(block_bytes=256)))


class Arena(FakeArena):
    """With a byte pattern of its own in each block; `reading` is called before a block's bytes are handed out."""

    def __init__(self) -> None:
        super().__init__(BLOCKS)
        self.reading: Callable[[int], object] = lambda slot: None
        for slot in range(BLOCKS):
            FakeArena.block(self, slot)[:] = bytes((slot * 31 + i) % 256 for i in range(self.block_bytes))
            self.bump(slot)

    def block(self, slot: int) -> memoryview:
        self.reading(slot)
        return super().block(slot)


@dataclass
class Ends:
    """The owner's end, listening, and readers of it."""

    security: LinkSecurity
    deadlines: Deadlines
    port: int
    endpoint: str
    arena: Arena = field(default_factory=Arena)
    read: list[tuple[Address, RequestId]] = field(default_factory=list)
    damaged: int = 0
    owner: BlockOwner = field(init=False)
    ticket: Ticket = field(init=False)

    def __post_init__(self) -> None:
        contexts = Contexts(self.security)
        self.owner = BlockOwner(
            PREFILL, self.endpoint, self.security, contexts, self.deadlines, lambda *who: self.read.append(who)
        )
        self.ticket = self.owner.issue(DECODE, self.arena)

    def _damaged(self) -> None:
        self.damaged += 1

    @asynccontextmanager
    async def source(self, *, owner: Address = PREFILL, ticket: bytes = b"") -> AsyncIterator[RemoteArena]:
        offer = ArenaOffer(
            header_bytes=self.arena.header_bytes,
            blocks_total=BLOCKS,
            block_bytes=self.arena.block_bytes,
            ways={WAY: ticket or self.ticket.value},
        )
        source = RemoteArena(
            protocol.Endpoint(self.endpoint), owner, offer, self.security, Contexts(self.security),
            self.deadlines, self._damaged,
        )  # fmt: skip
        try:
            yield source
        finally:
            source.close()

    def pulls(self, *slots: int) -> tuple[list[Pull], list[bytearray]]:
        buffers = [bytearray(self.arena.block_bytes) for _ in slots]
        pulls = [
            Pull(slot, self.arena.generation(slot), memoryview(buffer))
            for slot, buffer in zip(slots, buffers, strict=True)
        ]
        return pulls, buffers

    def expected(self, *slots: int) -> list[bytes]:
        return [bytes(FakeArena.block(self.arena, slot)) for slot in slots]


@asynccontextmanager
async def ends_of(security: LinkSecurity, *, advertised: str = "", **deadlines: float) -> AsyncIterator[Ends]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    listen = tcp_endpoint("127.0.0.1", port)
    ends = Ends(security, Deadlines(**deadlines), port, advertised or listen)  # type: ignore[arg-type]
    server = TcpServer(
        listen=listen, advertised=ends.endpoint, security=security, contexts=Contexts(security), greeting_s=5.0,
        on_frames=nobody, on_blocks=ends.owner.serve,
    )  # fmt: skip
    server.start()
    try:
        yield ends
        async with asyncio.timeout(20):
            ends.owner.revoke(ends.ticket)
            while ends.owner.connections:  # noqa: ASYNC110 - threads end by themselves
                await asyncio.sleep(0.01)
    finally:
        server.close()


async def nobody(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    raise AssertionError("no frames here")


@pytest.fixture(params=["plaintext", "secret", "tls"])
def security(request: pytest.FixtureRequest, tmp_path: Path) -> LinkSecurity:
    match request.param:
        case "secret":
            return LinkSecurity(secret_file=secret_file(tmp_path))
        case "tls":
            return mutual_tls(tmp_path)
        case _:
            return LOOPBACK


async def test_blocks_arrive_as_they_are(security: LinkSecurity) -> None:
    async with ends_of(security) as ends, ends.source() as source:
        await source.open()
        for slots in ((3,), tuple(range(BLOCKS)), (5, 5, 0)):
            pulls, buffers = ends.pulls(*slots)
            await source.read(NAME, pulls)
            assert [bytes(buffer) for buffer in buffers] == ends.expected(*slots)
        assert ends.owner.connections == 1
        assert set(ends.read) == {(DECODE, NAME)}


async def test_requests_take_turns_on_one_connection(security: LinkSecurity) -> None:
    async with ends_of(security) as ends, ends.source() as source:
        asked = [ends.pulls(slot, (slot + 1) % BLOCKS) for slot in range(BLOCKS)]
        await asyncio.gather(*(source.read(RequestId(str(i)), pulls) for i, (pulls, _) in enumerate(asked)))
        for slot, (_, buffers) in enumerate(asked):
            assert [bytes(buffer) for buffer in buffers] == ends.expected(slot, (slot + 1) % BLOCKS)


async def test_a_block_that_has_another_owner_is_stale(security: LinkSecurity) -> None:
    async with ends_of(security) as ends, ends.source() as source:
        pulls, _ = ends.pulls(1, 2, 3)
        ends.arena.bump(2)
        with pytest.raises(StaleBlock, match="slot 2 has generation 2, announced was 1"):
            await source.read(NAME, pulls)
        pulls, buffers = ends.pulls(1, 2, 3)
        await source.read(NAME, pulls)
        assert [bytes(buffer) for buffer in buffers] == ends.expected(1, 2, 3)


async def test_a_block_that_changes_owner_while_it_is_copied_is_stale(security: LinkSecurity) -> None:
    async with ends_of(security) as ends, ends.source() as source:
        pulls, _ = ends.pulls(4)
        ends.arena.reading = ends.arena.bump  # after the first look at its generation
        with pytest.raises(StaleBlock, match="slot 4"):
            await source.read(NAME, pulls)
        assert ends.damaged == 0


async def test_a_slot_that_is_none(security: LinkSecurity) -> None:
    async with ends_of(security) as ends, ends.source() as source:
        pulls, _ = ends.pulls(1)
        with pytest.raises(StaleBlock, match="outside"):
            await source.read(NAME, [Pull(BLOCKS, 1, pulls[0].destination)])


# --- strangers ----------------------------------------------------------------------------------------------------


async def test_strangers_leave_room_for_those_that_are_in(tmp_path: Path) -> None:
    """Few at a time, each until its deadline, all of them counted; who has proved himself goes on reading."""
    security = LinkSecurity(secret_file=secret_file(tmp_path))
    async with ends_of(security, greeting_s=20.0) as ends, ends.source() as source:
        await source.open()
        strangers = []
        for _ in range(MAX_UNPROVEN + 3):
            stranger = socket.create_connection(("127.0.0.1", ends.port))
            stranger.sendall(Purpose.BLOCKS.value)
            strangers.append(stranger)
        await until(lambda: ends.owner.refused == 3)
        assert ends.owner.connections == 1 + MAX_UNPROVEN
        pulls, buffers = ends.pulls(1)
        await source.read(NAME, pulls)
        assert [bytes(buffer) for buffer in buffers] == ends.expected(1)
        for stranger in strangers:
            stranger.close()
        await until(lambda: ends.owner.refused == MAX_UNPROVEN + 3)
        await until(lambda: ends.owner.connections == 1)
        async with ends.source() as other:
            await other.open()


async def test_a_ticket_that_is_not_good_counts_as_refused(security: LinkSecurity) -> None:
    async with ends_of(security) as ends, ends.source(ticket=b"x" * 32) as source:
        with pytest.raises(PeerUnreachable):
            await source.open()
        await until(lambda: ends.owner.refused == 1)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 - threads
            await asyncio.sleep(0.01)


# --- what networks do ---------------------------------------------------------------------------------------------


@asynccontextmanager
async def through(meddler_of: list[Meddler], **deadlines: float) -> AsyncIterator[tuple[Ends, Meddler]]:
    """Ends in plaintext with the meddler between."""
    async with ends_of(LOOPBACK, **deadlines) as ends:
        meddler = meddler_of[0]
        meddler.target = ends.port
        async with meddler.listening() as port:
            ends.endpoint = tcp_endpoint("127.0.0.1", port)
            yield ends, meddler


DAMAGE = OPENING_BYTES + HEAD.size + 100


async def test_a_damaged_block_is_read_again() -> None:
    async with through([Meddler(0, flip_after=[DAMAGE])]) as (ends, meddler), ends.source() as source:
        pulls, buffers = ends.pulls(1, 2, 3)
        await source.read(NAME, pulls)
        assert [bytes(buffer) for buffer in buffers] == ends.expected(1, 2, 3)
        assert (ends.damaged, meddler.connections) == (1, 2)


@pytest.mark.parametrize("offset", range(OPENING_BYTES, OPENING_BYTES + HEAD.size + 256 + 12, 19))
async def test_no_damage_goes_unnoticed_wherever_it_is(offset: int) -> None:
    async with (
        through([Meddler(0, flip_after=[offset, offset])], block_s=1.0) as (ends, _),
        ends.source() as source,
    ):
        pulls, _ = ends.pulls(1)
        with pytest.raises(TransferError) as caught:
            await source.read(NAME, pulls)
        assert caught.value.code in (ErrorCode.TRANSFER, ErrorCode.PEER_LOST)


async def test_damage_that_stays_fails_the_request() -> None:
    async with through([Meddler(0, flip_after=[DAMAGE, DAMAGE])]) as (ends, _), ends.source() as source:
        pulls, _ = ends.pulls(1)
        with pytest.raises(DamagedBlock, match="CRC"):
            await source.read(NAME, pulls)
        assert ends.damaged == 2
        pulls, buffers = ends.pulls(1)  # the next one gets a connection of its own
        await source.read(NAME, pulls)
        assert [bytes(buffer) for buffer in buffers] == ends.expected(1)


async def test_a_connection_that_breaks_in_a_block_is_made_anew() -> None:
    async with through([Meddler(0, cut_after=[DAMAGE])]) as (ends, meddler), ends.source() as source:
        pulls, buffers = ends.pulls(1, 2)
        await source.read(NAME, pulls)
        assert [bytes(buffer) for buffer in buffers] == ends.expected(1, 2)
        assert meddler.connections == 2


async def test_a_connection_that_breaks_again_fails_the_request() -> None:
    async with through([Meddler(0, cut_after=[DAMAGE] * 2)]) as (ends, _), ends.source() as source:
        pulls, _ = ends.pulls(1)
        with pytest.raises(PeerUnreachable):
            await source.read(NAME, pulls)


async def test_a_host_that_vanishes_is_given_up_at_the_deadline() -> None:
    async with (
        through([Meddler(0)], block_s=0.3) as (ends, meddler),
        ends.source() as source,
    ):
        await source.open()
        meddler.swallow = True
        pulls, _ = ends.pulls(1)
        with pytest.raises(PeerUnreachable, match=r"time|keep up"):
            await source.read(NAME, pulls)


async def test_a_peer_that_trickles_is_given_up_at_the_batch_deadline() -> None:
    async with (
        through([Meddler(0, bytes_per_s=1000)], block_s=5.0, block_batch_s=0.5) as (ends, _),
        ends.source() as source,
    ):
        pulls, _ = ends.pulls(*range(BLOCKS))
        with pytest.raises(PeerUnreachable, match=r"time|keep up"):
            await source.read(NAME, pulls)


async def test_a_slow_peer_within_its_deadline_is_waited_for() -> None:
    async with through([Meddler(0, bytes_per_s=20_000)]) as (ends, _), ends.source() as source:
        pulls, buffers = ends.pulls(*range(BLOCKS))
        await source.read(NAME, pulls)
        assert [bytes(buffer) for buffer in buffers] == ends.expected(*range(BLOCKS))


async def test_the_end_of_the_link_ends_a_read_that_hangs_and_those_behind_it() -> None:
    async with through([Meddler(0)], block_s=60.0) as (ends, meddler), ends.source() as source:
        await source.open()
        meddler.swallow = True
        reads = [asyncio.create_task(source.read(NAME, ends.pulls(slot)[0])) for slot in range(3)]
        await asyncio.sleep(0.1)
        source.close()
        async with asyncio.timeout(10):
            ended = await asyncio.gather(*reads, return_exceptions=True)
        assert [type(error) for error in ended] == [PeerUnreachable] * 3


async def test_withdrawing_ends_a_thread_that_sends_to_nobody(security: LinkSecurity) -> None:
    """A reader that was stopped: its link is closed for its silence, and the thread must not stay."""
    async with ends_of(security, block_s=60.0) as ends, ends.source() as source:
        await source.open()
        started, withdrawn = threading.Event(), threading.Event()
        ends.arena.reading = lambda slot: (started.set(), withdrawn.wait(20))
        reading = asyncio.create_task(source.read(NAME, ends.pulls(1, 2, 3)[0]))
        assert await asyncio.to_thread(started.wait, 20)
        ends.owner.revoke(ends.ticket)
        withdrawn.set()
        with pytest.raises(PeerUnreachable, match="ticket"):
            await reading


# --- who may read -------------------------------------------------------------------------------------------------


async def test_tickets_end_with_their_link(security: LinkSecurity) -> None:
    async with ends_of(security) as ends, ends.source() as source:
        ends.owner.revoke(ends.ticket)
        with pytest.raises(PeerUnreachable, match="ticket"):
            await source.open()


async def test_a_made_up_ticket(security: LinkSecurity) -> None:
    async with ends_of(security) as ends, ends.source(ticket=bytes(32)) as source:
        with pytest.raises(PeerUnreachable, match="ticket"):
            await source.open()


async def test_a_stale_epoch_is_refused(security: LinkSecurity) -> None:
    async with ends_of(security) as ends, ends.source(owner=Address(worker="p", epoch=6)) as source:
        with pytest.raises(PeerUnreachable, match=r"stale_epoch: here is p@7\.0, not p@6\.0"):
            await source.open()


async def test_another_secret_reads_nothing(tmp_path: Path) -> None:
    async with ends_of(LinkSecurity(secret_file=secret_file(tmp_path))) as ends:
        ends.security = LinkSecurity(secret_file=secret_file(tmp_path, "another secret of some length"))
        async with ends.source() as source:
            with pytest.raises(PeerUnreachable):
                await source.open()


async def test_another_authority_reads_nothing(tmp_path: Path) -> None:
    ours = mutual_tls(tmp_path, "ours")
    async with ends_of(ours) as ends:
        ends.security = mutual_tls(tmp_path, "theirs", authority=ours.tls_ca)
        async with ends.source() as source:
            with pytest.raises(PeerUnreachable):
                await source.open()


async def test_a_second_connection_of_a_link_ends_its_first() -> None:
    async with ends_of(LOOPBACK) as ends, ends.source() as first, ends.source() as second:
        await first.open()
        await second.open()
        async with asyncio.timeout(20):
            while ends.owner.connections > 1:  # noqa: ASYNC110
                await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    "said",
    [
        struct.pack(">II", MAX_REQUEST_BYTES + 1, 0),
        struct.pack(">II", 2**32 - 1, 0),
        struct.pack(">II", 4, crc32c.crc32c(b"\xc1\xc1\xc1\xc1")) + b"\xc1\xc1\xc1\xc1",
        struct.pack(">II", 4, 1) + b"\xc1\xc1\xc1\xc1",
        protocol.encode(ReadBlocks(request_id=NAME, slots=[1, 2], generations=[1])),
        protocol.encode(protocol.Ping(1)),
    ],
)
@pytest.mark.parametrize("opened", [True, False])
async def test_what_is_no_request_ends_the_connection(said: bytes, opened: bool) -> None:
    async with ends_of(LOOPBACK) as ends:
        reader, writer = await asyncio.open_connection("127.0.0.1", ends.port)
        writer.write(Purpose.BLOCKS.value)
        if opened:
            writer.write(protocol.encode(OpenBlocks(ticket=ends.ticket.value, expect=PREFILL)))
            assert isinstance(await protocol.read_frame(reader), BlocksOpen)
        writer.write(said)
        async with asyncio.timeout(20):
            assert await reader.read() == b""
        writer.close()


async def test_refusals_are_frames() -> None:
    async with ends_of(LOOPBACK) as ends:
        reader, writer = await asyncio.open_connection("127.0.0.1", ends.port)
        writer.write(Purpose.BLOCKS.value + protocol.encode(OpenBlocks(ticket=b"", expect=PREFILL)))
        answer = await protocol.read_frame(reader)
        assert isinstance(answer, Refused)
        assert msgspec.structs.replace(answer, message="") == Refused(code=ErrorCode.INVALID, message="")
        writer.close()
