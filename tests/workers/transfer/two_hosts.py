"""`python -m tests.workers.transfer.two_hosts FOLDER`, run by `test_namespaces` in the first of two network namespaces.

A program of its own: a process that has threads cannot move into another user namespace.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

from tests.workers.certificates import mutual_tls
from tests.workers.conftest import Process, Workers, a_pool, connect_pair
from tests.workers.fake_engine import expected
from tests.workers.protocol_client import Client, Pair
from workers.network.security import LinkSecurity
from workers.protocol import Endpoint, ErrorCode, Role
from workers.spec import TransferChoice, WorkerNetwork

HERE, THERE = "tcp:10.77.0.1:7100", "tcp:10.77.0.2:7100"
FAKE = [sys.executable, "-m", "tests.workers.fake_worker"]
ENTER = ["nsenter", "--target", os.environ.get("OTHER", ""), "--net"]
SLOW = "fake?step_s=0.05&chunk=1"


def prompt(number: int) -> list[int]:
    return [100 * number + token for token in range(1, 39)]


def start(pool: Workers, role: Role, endpoint: str, security: LinkSecurity, program: list[str]) -> Process:
    """The unix socket is for the gateway, so that the wire joins the workers alone."""
    local = Endpoint(f"unix:{pool.folder}/{role}.sock")
    network = WorkerNetwork(local=local, security=security, transfer=TransferChoice.TCP)
    spec = pool.spec(role, name=str(role), model=SLOW, endpoint=Endpoint(endpoint), network=network)
    return pool.start(spec, program=program)


def wire(state: str) -> None:
    subprocess.run(["ip", "link", "set", "near", state], check=True)


def say(word: str) -> None:
    sys.stdout.write(word + "\n")


async def lost(client: Client, request_id: str) -> None:
    await client.until(lambda: client.about(request_id).ended)
    failed = client.about(request_id).failed
    assert failed is not None
    assert failed.code is ErrorCode.PEER_LOST, failed


async def served(pair: Pair, number: int) -> None:
    name = f"request {number}"
    pair.start(name, prompt(number), 10)
    assert await pair.finished(name) == expected(prompt(number), 10)
    await pair.idle()


async def main(pool: Workers, folder: Path) -> None:
    security = mutual_tls(folder)
    prefill = start(pool, Role.PREFILL, HERE, security, FAKE)
    decode = start(pool, Role.DECODE, THERE, security, [*ENTER, *FAKE])
    pair = await connect_pair(prefill, decode)
    await served(pair, 1)
    say("equal")
    pair.start("cut", prompt(2), 50)
    await pair.decode.status_where(lambda status: status.transfers)
    wire("down")
    await asyncio.gather(lost(pair.prefill, "cut"), lost(pair.decode, "cut"))
    await pair.idle()
    say("cut")
    wire("up")
    await served(pair, 3)
    say("mended")


if __name__ == "__main__":
    with a_pool() as pool:
        asyncio.run(main(pool, Path(sys.argv[1])))
