"""Blocks from one process's arena to another's on one machine: shared memory, TCP, TCP with TLS.

The code is that of workers: the owner's process listens and offers its arena, this one dials as a decode worker does
and reads in batches of the puller's size. Loopback has no wire: what TCP shows is what the two ends pay (kernel copies,
CRC, with TLS the cipher), the most that a faster network could bring. Each end uses one thread.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import socket
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import trustme

from benchmarks.harness import Benchmark, compare
from workers import protocol
from workers.engine.arena import Arena
from workers.network.endpoints import tcp_endpoint
from workers.network.security import LinkSecurity, Plaintext
from workers.network.server import TcpServer
from workers.network.tls import Contexts
from workers.protocol import Address, Endpoint, Hello, PeerKind, RequestId, Role, Welcome, WorkerState
from workers.spec import TransferChoice
from workers.transfer.base import BlockSource, Pull
from workers.transfer.deadlines import Deadlines
from workers.transfer.puller import BATCH_BYTES
from workers.transfer.shared_memory import SharedMemory
from workers.transfer.tcp.owner import BlockOwner
from workers.transfer.tcp.transport import Tcp

COLUMNS = ("way", "block KiB", "GB/s", "against", "its GB/s", "its time / ours")
BLOCK_BYTES = (30 * 2 * 3 * 64 * 4 * 16, 30 * 2 * 3 * 64 * 4)
"""SmolLM2 in float32 with 16 tokens to a block, and blocks of a sixteenth of that."""
TOTAL_BYTES = 128 * 2**20
PREFILL, DECODE = Address(worker="p", epoch=1), Address(worker="d", epoch=1)
WELCOME = Welcome(
    address=PREFILL, role=Role.PREFILL, state=WorkerState.READY, model="m", revision="r", block_identity="i",
    block_tokens=16, max_context=1, max_queue=1,
)  # fmt: skip


def tls_files(folder: Path) -> LinkSecurity:
    authority = trustme.CA()
    certificate = authority.issue_cert("127.0.0.1")
    authority.cert_pem.write_to_path(str(folder / "ca.pem"))
    certificate.private_key_pem.write_to_path(str(folder / "key.pem"))
    certificate.cert_chain_pems[0].write_to_path(str(folder / "certificate.pem"))
    return LinkSecurity(
        tls_ca=str(folder / "ca.pem"), tls_certificate=str(folder / "certificate.pem"), tls_key=str(folder / "key.pem")
    )


def transport(security: LinkSecurity, endpoint: str, shared_memory: SharedMemory) -> tuple[Tcp, BlockOwner, Contexts]:
    contexts, deadlines = Contexts(security), Deadlines()
    owner = BlockOwner(PREFILL, endpoint, security, contexts, deadlines, lambda peer, request_id: None)
    return Tcp(security, contexts, deadlines, owner, TransferChoice.TCP, shared_memory), owner, contexts


async def own(block_bytes: int, unix: str, ways: dict[str, LinkSecurity]) -> None:
    """The owner's process: an arena of random bytes, offered every way, until it is ended."""
    arena = Arena(TOTAL_BYTES // block_bytes, block_bytes)
    arena.blocks.random_()
    shared_memory = SharedMemory()
    servers = []

    async def over_unix(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await protocol.read_frame(reader)
        writer.write(protocol.encode(WELCOME))
        await shared_memory.offer(writer, arena, DECODE)
        await reader.read()

    for endpoint, security in ways.items():
        tcp, owner, contexts = transport(security, endpoint, shared_memory)

        async def over_tcp(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, tcp: Tcp = tcp) -> None:
            await protocol.read_frame(reader)
            writer.write(protocol.encode(WELCOME))
            await tcp.offer(writer, arena, DECODE)
            await reader.read()

        servers.append(
            TcpServer(
                listen=endpoint, advertised=endpoint, security=security, contexts=contexts, greeting_s=5.0,
                on_frames=over_tcp, on_blocks=owner.serve,
            )
        )  # fmt: skip
        servers[-1].start()
    async with await asyncio.start_unix_server(over_unix, unix) as server:
        await server.serve_forever()


def start_owner(block_bytes: int, unix: str, ways: dict[str, LinkSecurity]) -> None:
    asyncio.run(own(block_bytes, unix, ways))


@contextmanager
def owner_process(block_bytes: int, unix: str, ways: dict[str, LinkSecurity]) -> Iterator[None]:
    process = multiprocessing.get_context("spawn").Process(target=start_owner, args=(block_bytes, unix, ways))
    process.start()
    try:
        yield
    finally:
        process.kill()
        process.join()


@asynccontextmanager
async def sources(unix: str, ways: dict[str, LinkSecurity]) -> AsyncIterator[list[BlockSource]]:
    """Shared memory first, then the TCP ways in order."""
    shared_memory = SharedMemory()
    hello = Hello(peer=str(DECODE), kind=PeerKind.WORKER)
    async with asyncio.timeout(60):
        while not Path(unix).exists():  # noqa: ASYNC110, ASYNC240 - it loads torch first
            await asyncio.sleep(0.1)
    dialled = [await shared_memory.dial(Endpoint(f"unix:{unix}"), hello)]
    for endpoint, security in ways.items():
        tcp, _, _ = transport(security, endpoint, shared_memory)
        dialled.append(await tcp.dial(Endpoint(endpoint), hello))
    yield [one.source for one in dialled]
    for one in dialled:
        one.source.close()
        one.writer.close()
    shared_memory.close()


def measure(benchmark: Benchmark, block_bytes: int, folder: Path, pairs: int) -> None:
    unix = str(folder / f"{block_bytes}.sock")
    ways = {free_endpoint(): LinkSecurity(plaintext=Plaintext.LOOPBACK), free_endpoint(): tls_files(folder)}
    here = Arena(TOTAL_BYTES // block_bytes, block_bytes)
    blocks, batch = here.blocks_total, max(1, BATCH_BYTES // block_bytes)
    moved = blocks * block_bytes

    async def all_blocks(source: BlockSource) -> None:
        for first in range(0, blocks, batch):
            slots = range(first, min(first + batch, blocks))
            await source.read(RequestId("a"), [Pull(slot, 0, here.block(slot)) for slot in slots])

    with owner_process(block_bytes, unix, ways), asyncio.Runner() as runner:
        context = sources(unix, ways)
        shared, tcp, tls = runner.run(context.__aenter__())
        for way, ours, against, peer in (("TCP", tcp, "shared memory", shared), ("TCP + TLS", tls, "TCP", tcp)):
            result = compare(
                lambda ours=ours: runner.run(all_blocks(ours)),
                lambda peer=peer: runner.run(all_blocks(peer)),
                pairs=pairs,
            )
            values = (
                way,
                block_bytes // 1024,
                moved / result.ours_s / 1e9,
                against,
                moved / result.peer_s / 1e9,
                result,
            )
            benchmark.add(**dict(zip(COLUMNS, values, strict=True)))
        runner.run(context.__aexit__(None, None, None))


def free_endpoint() -> str:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return tcp_endpoint("127.0.0.1", free.getsockname()[1])


def main() -> None:
    benchmark, options = Benchmark.from_arguments("transfer", COLUMNS)
    for block_bytes in BLOCK_BYTES:
        with tempfile.TemporaryDirectory(prefix="galley-") as folder:
            measure(benchmark, block_bytes, Path(folder), options.pairs)
    benchmark.finish()


if __name__ == "__main__":
    main()
