"""Dialling and accepting over real sockets: who gets through, and who does not."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest

from tests.workers.certificates import mutual_tls, secret_file
from workers.network.endpoints import tcp_endpoint
from workers.network.handshake import Purpose
from workers.network.security import AuthenticationFailed, InsecureLink, LinkSecurity, Plaintext
from workers.network.server import MAX_GREETING, TcpServer
from workers.network.sockets import connect, secure
from workers.network.streams import open_stream
from workers.network.tls import Contexts

LOOPBACK = LinkSecurity(plaintext=Plaintext.LOOPBACK)


@dataclass
class Echo:
    """Echoes frames' streams line by line; keeps the sockets for blocks."""

    security: LinkSecurity
    greeting_s: float = 5.0
    blocks: list[socket.socket] = field(default_factory=list)

    @asynccontextmanager
    async def listening(self, advertised: str = "") -> AsyncIterator[tuple[TcpServer, str]]:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        endpoint = tcp_endpoint("127.0.0.1", port)
        server = TcpServer(
            listen=endpoint,
            advertised=advertised or endpoint,
            security=self.security,
            contexts=Contexts(self.security),
            greeting_s=self.greeting_s,
            on_frames=self._echo,
            on_blocks=self.blocks.append,
        )
        server.start()
        try:
            yield server, endpoint
        finally:
            server.close()
            for connection in self.blocks:
                connection.close()

    async def _echo(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.readline())
        writer.close()


async def says(endpoint: str, security: LinkSecurity) -> bytes:
    async with asyncio.timeout(20):
        reader, writer = await open_stream(endpoint, security)
        writer.write(b"hello\n")
        answer = await reader.read()
        writer.close()
        return answer


def with_secret(
    security: LinkSecurity, folder: Path, secret: str = "a secret of more than sixteen bytes"
) -> LinkSecurity:
    return msgspec.structs.replace(security, secret_file=secret_file(folder, secret))


@pytest.fixture(params=["plaintext", "secret", "tls", "tls and secret"])
def security(request: pytest.FixtureRequest, tmp_path: Path) -> LinkSecurity:
    return {
        "plaintext": lambda: LOOPBACK,
        "secret": lambda: with_secret(LinkSecurity(), tmp_path),
        "tls": lambda: mutual_tls(tmp_path),
        "tls and secret": lambda: with_secret(mutual_tls(tmp_path), tmp_path),
    }[request.param]()


async def test_frames_get_through(security: LinkSecurity) -> None:
    async with Echo(security).listening() as (server, endpoint):
        assert await says(endpoint, security) == b"hello\n"
        assert server.refused == 0


async def test_blocks_get_through_on_the_same_port(security: LinkSecurity) -> None:
    echo, contexts = Echo(security), Contexts(security)
    async with echo.listening() as (_, endpoint):
        until = time.monotonic() + 20
        dialling = asyncio.create_task(asyncio.to_thread(connect, endpoint, security, contexts, Purpose.BLOCKS, until))
        while not echo.blocks:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        there = await asyncio.to_thread(secure, echo.blocks[0], endpoint, security, contexts, Purpose.BLOCKS, until)
        here = await dialling
        await asyncio.to_thread(here.sendall, b"blocks")
        assert await asyncio.to_thread(there.recv, 6) == b"blocks"
        assert here.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        here.close()
        there.close()


async def refusal(endpoint: str, security: LinkSecurity) -> str:
    with pytest.raises((OSError, AssertionError)) as caught:
        assert await says(endpoint, security) == b"hello\n"
    return str(caught.value)


async def test_a_wrong_secret(tmp_path: Path) -> None:
    async with Echo(with_secret(LinkSecurity(), tmp_path)).listening() as (server, endpoint):
        with pytest.raises(AuthenticationFailed, match="same secret"):
            await says(endpoint, with_secret(LinkSecurity(), tmp_path, "another secret of some length"))
        assert server.refused == 1


async def test_a_secret_that_cannot_be_read_any_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is left of the connection, also below the stream that was made of it."""
    writers: list[asyncio.StreamWriter] = []  # kept, or the collector closes them
    made = asyncio.StreamWriter.__init__

    def remember(self: asyncio.StreamWriter, *rest: object) -> None:
        writers.append(self)
        made(self, *rest)  # type: ignore[arg-type]

    security = with_secret(LinkSecurity(), tmp_path)
    async with Echo(security).listening() as (server, endpoint):
        os.unlink(security.secret_file)
        monkeypatch.setattr(asyncio.StreamWriter, "__init__", remember)
        await closes(endpoint, Purpose.FRAMES.value)
        assert server.refused == 1
    assert [writer.is_closing() for writer in writers] == [True, True]


async def test_a_proof_that_was_meant_for_another_endpoint(tmp_path: Path) -> None:
    """Somebody between who passes everything on, at an address of his own."""
    security = with_secret(LinkSecurity(), tmp_path)
    async with Echo(security).listening(advertised="tcp:10.0.0.5:7100") as (_, endpoint):
        with pytest.raises(AuthenticationFailed):
            await says(endpoint, security)


async def test_a_server_without_the_secret(tmp_path: Path) -> None:
    async with Echo(with_secret(LinkSecurity(), tmp_path, "what an impostor knows")).listening() as (_, endpoint):
        with pytest.raises(AuthenticationFailed):
            await says(endpoint, with_secret(LinkSecurity(), tmp_path))


Pairing = Callable[[Path], tuple[LinkSecurity, LinkSecurity]]


def client_of_another_authority(folder: Path) -> tuple[LinkSecurity, LinkSecurity]:
    server = mutual_tls(folder, "ours")
    return server, mutual_tls(folder, "theirs", authority=server.tls_ca)


def server_of_another_authority(folder: Path) -> tuple[LinkSecurity, LinkSecurity]:
    client = mutual_tls(folder, "ours")
    return mutual_tls(folder, "theirs", authority=client.tls_ca), client


def certificate_of_another_host(folder: Path) -> tuple[LinkSecurity, LinkSecurity]:
    wrong = mutual_tls(folder, "ours", hosts=("10.9.9.9",))
    return wrong, wrong


def no_client_certificate(folder: Path) -> tuple[LinkSecurity, LinkSecurity]:
    server = mutual_tls(folder, "ours")
    return server, msgspec.structs.replace(
        with_secret(LinkSecurity(tls_ca=server.tls_ca), folder), tls_certificate="", tls_key=""
    )


def no_tls_at_all(folder: Path) -> tuple[LinkSecurity, LinkSecurity]:
    return mutual_tls(folder, "ours"), LOOPBACK


@pytest.mark.parametrize(
    "pairing",
    [
        client_of_another_authority,
        server_of_another_authority,
        certificate_of_another_host,
        no_client_certificate,
        no_tls_at_all,
    ],
)
async def test_wrong_certificates(pairing: Pairing, tmp_path: Path) -> None:
    server, client = pairing(tmp_path)
    async with Echo(server, greeting_s=2.0).listening() as (_, endpoint):
        assert await refusal(endpoint, client)


async def test_one_name_for_every_workers_certificate(tmp_path: Path) -> None:
    security = mutual_tls(tmp_path, hosts=("worker.galley",))
    named = msgspec.structs.replace(security, tls_name="worker.galley")
    async with Echo(security).listening() as (_, endpoint):
        assert await says(endpoint, named) == b"hello\n"
        assert await refusal(endpoint, security)


async def test_certificates_are_read_again_when_they_change(tmp_path: Path) -> None:
    old, new = mutual_tls(tmp_path, "old"), mutual_tls(tmp_path, "new")
    async with Echo(old).listening() as (_, endpoint):
        assert await says(endpoint, old) == b"hello\n"
        for name in ("ca.pem", "certificate.pem", "key.pem"):
            (tmp_path / "old" / name).write_bytes((tmp_path / "new" / name).read_bytes())
        assert await says(endpoint, new) == b"hello\n"


def test_files_that_are_half_replaced_leave_what_was_good(tmp_path: Path) -> None:
    security = mutual_tls(tmp_path)
    contexts = Contexts(security)
    good = contexts.server()
    Path(security.tls_key).write_text("half a k")
    assert contexts.server() is good
    with pytest.raises(InsecureLink, match="TLS files"):
        Contexts(security).server()


def test_what_is_refused_at_the_start(tmp_path: Path) -> None:
    for security in (LinkSecurity(), LinkSecurity(secret_file=str(tmp_path / "missing"))):
        server = TcpServer(
            listen="tcp:127.0.0.1:0", advertised="tcp:127.0.0.1:0", security=security, contexts=Contexts(security),
            greeting_s=1.0, on_frames=never, on_blocks=lambda connection: None,
        )  # fmt: skip
        with pytest.raises(InsecureLink):
            server.start()


async def never(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    raise AssertionError("nobody got so far")


async def closes(endpoint: str, said: bytes) -> None:
    """Say `said` and wait until the other end closes."""
    _, _, port = endpoint.rpartition(":")
    reader, writer = await asyncio.open_connection("127.0.0.1", int(port))
    writer.write(said)
    try:
        async with asyncio.timeout(20):
            while await reader.read(1024):
                pass
    except ConnectionResetError:
        pass
    writer.close()


@pytest.mark.parametrize("said", [b"", b"GALLEY", b"GET / HTTP/1.1\r\n\r\n", Purpose.FRAMES.value, b"\xff" * 4096])
async def test_strangers_are_let_go(security: LinkSecurity, said: bytes) -> None:
    """Also those that say nothing more: at the deadline. (Plaintext then serves what it is asked: nothing.)"""
    async with Echo(security, greeting_s=0.3).listening() as (server, endpoint):
        silent_in_plaintext = security is LOOPBACK and said == Purpose.FRAMES.value
        if not silent_in_plaintext:
            await closes(endpoint, said)
            assert server.refused == 1
        assert await says(endpoint, security) == b"hello\n"


async def test_many_strangers_leave_room_when_they_time_out(tmp_path: Path) -> None:
    security = with_secret(LinkSecurity(), tmp_path)
    async with Echo(security, greeting_s=0.5).listening() as (_, endpoint):
        await asyncio.gather(*(closes(endpoint, b"") for _ in range(MAX_GREETING + 10)))
        assert await says(endpoint, security) == b"hello\n"


async def test_a_port_that_is_taken(tmp_path: Path) -> None:
    async with Echo(LOOPBACK).listening() as (server, endpoint):
        second = TcpServer(
            listen=endpoint, advertised=endpoint, security=LOOPBACK, contexts=Contexts(LOOPBACK), greeting_s=1.0,
            on_frames=never, on_blocks=lambda connection: None,
        )  # fmt: skip
        assert endpoint.endswith(f":{server.port}")
        with pytest.raises(OSError, match="in use"):
            second.start()


def test_nobody_at_the_other_end() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        endpoint = tcp_endpoint("127.0.0.1", free.getsockname()[1])
    with pytest.raises(ConnectionRefusedError):
        connect(endpoint, LOOPBACK, Contexts(LOOPBACK), Purpose.BLOCKS, time.monotonic() + 5)


async def test_dialling_is_refused_like_listening() -> None:
    with pytest.raises(InsecureLink):
        await open_stream("tcp:127.0.0.1:1", LinkSecurity())
    with pytest.raises(InsecureLink):
        await open_stream("tcp:10.0.0.5:1", LOOPBACK)
