"""Prefill and decode as two real processes that share no memory: the text is that of one engine, whatever happens."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.workers.certificates import mutual_tls, secret_file
from tests.workers.conftest import Process, Workers, a_pool, connect_pair
from tests.workers.fake_engine import expected
from tests.workers.meddler import Meddler
from tests.workers.protocol_client import Client, Pair, assert_cancelled
from workers.network.endpoints import parse_endpoint, tcp_endpoint
from workers.network.security import LinkSecurity, Plaintext
from workers.protocol import ErrorCode, Role, Status
from workers.spec import TransferChoice

PROMPT = list(range(1, 39))


def fresh(number: int) -> list[int]:
    """A prompt whose blocks nobody has yet."""
    return [100 * number + token for token in PROMPT]


LOOPBACK = LinkSecurity(plaintext=Plaintext.LOOPBACK)
QUICK = "fake?step_s=0.02"
SLOW = "fake?step_s=0.05&chunk=1"
"""Two seconds of prefill."""


def start(
    workers: Workers,
    role: Role,
    security: LinkSecurity,
    *,
    model: str = QUICK,
    transfer: TransferChoice = TransferChoice.TCP,
) -> Process:
    name = f"{role}-{len(workers.started)}"
    host = "127.0.0.1" if role is Role.PREFILL else "127.0.0.2"
    return workers.start(workers.spec(role, name=name, model=model, **workers.tcp(host, name, security, transfer)))


def start_pair(
    workers: Workers,
    security: LinkSecurity,
    *,
    model: str = QUICK,
    transfer: TransferChoice = TransferChoice.TCP,
) -> tuple[Process, Process]:
    """At different addresses, as on two hosts."""
    return (
        start(workers, Role.PREFILL, security, model=model, transfer=transfer),
        start(workers, Role.DECODE, security, model=model, transfer=transfer),
    )


@pytest.fixture(scope="module")
def pool() -> Iterator[Workers]:
    with a_pool() as pool:
        yield pool


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("links")


# --- a pair that nobody harms -------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=["secret", "tls"])
def lasting(request: pytest.FixtureRequest, pool: Workers, folder: Path) -> tuple[Process, Process]:
    security = LinkSecurity(secret_file=secret_file(folder)) if request.param == "secret" else mutual_tls(folder)
    return start_pair(pool, security)


@pytest.fixture
async def pair(lasting: tuple[Process, Process]) -> AsyncIterator[Pair]:
    """The gateway's connections are TCP as well."""
    await (await lasting[0].ready()).close()
    await (await lasting[1].ready()).close()
    clients = [await Client.connect(one.spec.endpoint, security=one.spec.network.security) for one in lasting]
    yield Pair(clients[0], clients[1], lasting[0].spec.endpoint)
    for client in clients:
        await client.close()


def shares(process: Process) -> bool:
    """Whether `process` has mapped an arena beside its own."""
    maps = Path(f"/proc/{process.popen.pid}/maps").read_text()
    return len({line.split()[4] for line in maps.splitlines() if "memfd:fake-arena" in line}) > 1


async def test_tokens_equal_those_of_one_engine(pair: Pair, lasting: tuple[Process, Process]) -> None:
    pair.start("a", PROMPT, 20)
    assert await pair.finished("a") == expected(PROMPT, 20)
    longer = PROMPT + pair.tokens("a") + [7, 8, 9]
    await pair.idle()
    pair.start("b", longer, 4)
    assert await pair.finished("b") == expected(longer, 4)
    await pair.idle()
    assert not shares(lasting[1])


async def test_many_at_once(pair: Pair) -> None:
    prompts = {f"r{n}": list(range(n + 1, n + 1 + 3 * n + 2)) for n in range(12)}
    for name, prompt in prompts.items():
        pair.start(name, prompt, 8)
    for name, prompt in prompts.items():
        assert await pair.finished(name) == expected(prompt, 8)
    await pair.idle()


async def test_cancel_while_blocks_are_announced(pair: Pair) -> None:
    pair.start("a", PROMPT, 100)
    await pair.prefill.until(lambda: pair.prefill.about("a").scheduled)
    pair.cancel("a")
    await pair.idle()
    assert_cancelled(pair, "a")


async def test_another_secret_or_certificate_gets_nothing(
    pair: Pair, lasting: tuple[Process, Process], pool: Workers, tmp_path: Path
) -> None:
    security = lasting[0].spec.network.security
    if security.tls:
        other = mutual_tls(tmp_path, authority=security.tls_ca)
    else:
        other = LinkSecurity(secret_file=secret_file(tmp_path, "another secret of some length"))
    stranger = start(pool, Role.DECODE, other)
    strangers = Pair(pair.prefill, await stranger.ready(), pair.prefill_endpoint)
    strangers.start("a", PROMPT, 5)
    assert await failure_of(strangers.decode, "a") is ErrorCode.PEER_LOST
    strangers.cancel("a")
    await strangers.idle()
    stranger.kill()


async def failure_of(client: Client, request_id: str) -> ErrorCode:
    await client.until(lambda: client.about(request_id).ended)
    failed = client.about(request_id).failed
    assert failed is not None
    assert failed.retryable
    return failed.code


# --- which way ----------------------------------------------------------------------------------------------------


async def test_memory_is_shared_on_one_host_where_its_socket_can_be_reached(workers: Workers) -> None:
    prefill, decode = start_pair(workers, LOOPBACK, transfer=TransferChoice.AUTO)
    other = start(workers, Role.DECODE, LOOPBACK, transfer=TransferChoice.AUTO)
    pair = await connect_pair(prefill, decode)
    pair.start("a", PROMPT, 5)
    assert await pair.finished("a") == expected(PROMPT, 5)
    assert shares(decode)
    os.unlink(prefill.path)  # as between containers of one host
    pair = Pair(pair.prefill, await other.ready(), pair.prefill_endpoint)
    pair.start("b", PROMPT, 5)
    assert await pair.finished("b") == expected(PROMPT, 5)
    assert not shares(other)


async def test_plaintext_is_refused_by_default(workers: Workers) -> None:
    process = start(workers, Role.PREFILL, LinkSecurity())
    assert await asyncio.to_thread(process.wait) == 3
    assert "needs TLS" in process.log.read_text()


# --- what happens to workers and networks -------------------------------------------------------------------------


@dataclass
class Between:
    """A slow pair with a meddler between decode and prefill; the gateway has a way of its own. In plaintext, because
    proofs are bound to the endpoint that is dialled.
    """

    pair: Pair
    meddler: Meddler
    processes: tuple[Process, Process]


@pytest.fixture(scope="module")
def slow(pool: Workers) -> tuple[Process, Process]:
    return start_pair(pool, LOOPBACK, model=SLOW)


@pytest.fixture
async def between(slow: tuple[Process, Process]) -> AsyncIterator[Between]:
    pair = await connect_pair(*slow)
    meddler = Meddler(parse_endpoint(slow[0].spec.endpoint)[1][1])
    async with meddler.listening() as port:
        pair.prefill_endpoint = tcp_endpoint("127.0.0.1", port)
        yield Between(pair, meddler, slow)


async def test_damaged_blocks_never_become_text(between: Between) -> None:
    between.meddler.flip_after = [10**9, 600]  # the first connection is the link's, the second that for blocks
    between.pair.start("a", PROMPT, 10)
    assert await between.pair.finished("a") == expected(PROMPT, 10)
    assert between.meddler.connections == 3
    await between.pair.idle()


async def test_a_damaged_frame_ends_the_link(between: Between) -> None:
    between.meddler.flip_after = [1000]  # behind the greeting
    between.pair.start("a", fresh(1), 10)
    codes = await asyncio.gather(failure_of(between.pair.decode, "a"), failure_of(between.pair.prefill, "a"))
    assert set(codes) == {ErrorCode.PEER_LOST}
    await between.pair.idle()


async def test_a_network_that_goes_silent_in_mid_transfer(between: Between) -> None:
    """Nobody closes anything: both sides find out by the silence, free what they hold, and try again."""
    between.pair.start("a", fresh(2), 100)
    await between.pair.decode.status_where(lambda s: s.transfers)
    between.meddler.swallow = True
    codes = await asyncio.gather(failure_of(between.pair.decode, "a"), failure_of(between.pair.prefill, "a"))
    assert set(codes) == {ErrorCode.PEER_LOST}
    await between.pair.idle()
    between.meddler.swallow = False
    between.pair.start("b", PROMPT, 5)
    assert await between.pair.finished("b") == expected(PROMPT, 5)


@pytest.mark.parametrize("victim", [0, 1])
async def test_a_worker_that_hangs_in_mid_transfer(between: Between, victim: int) -> None:
    pair = between.pair
    survivor = (pair.decode, pair.prefill)[victim]
    pair.start("a", fresh(3 + victim), 100)
    await pair.decode.status_where(lambda s: s.transfers)
    between.processes[victim].kill(signal.SIGSTOP)
    try:
        assert await failure_of(survivor, "a") is ErrorCode.PEER_LOST
        await survivor.status_where(free)
    finally:
        between.processes[victim].kill(signal.SIGCONT)
    await pair.idle()


def free(status: Status) -> bool:
    return not (status.running or status.waiting or status.transfers or status.blocks_used)


@pytest.mark.parametrize("victim", [0, 1])
async def test_a_worker_that_is_killed_in_mid_transfer(workers: Workers, victim: int) -> None:
    processes = start_pair(workers, LOOPBACK, model=SLOW)
    pair = await connect_pair(*processes)
    survivor = (pair.decode, pair.prefill)[victim]
    pair.start("a", PROMPT, 100)
    await pair.decode.status_where(lambda s: s.transfers)
    processes[victim].kill()
    assert await failure_of(survivor, "a") is ErrorCode.PEER_LOST
    await survivor.status_where(free)
