"""Real worker processes on their own sockets."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest

from tests.workers.protocol_client import Client, Pair
from workers.manifest import ModelManifest, write_manifest
from workers.network.endpoints import tcp_endpoint
from workers.network.security import LinkSecurity
from workers.protocol import Address, Endpoint, Role, WorkerState
from workers.spec import EngineSettings, TransferChoice, WorkerNetwork, WorkerSpec

ROOT = Path(__file__).resolve().parents[2]
NOWHERE = "unix:///nonexistent/valkey.sock"
"""Workers serve without Valkey."""


@dataclass
class Process:
    spec: WorkerSpec
    popen: subprocess.Popen[bytes]
    log: Path

    @property
    def path(self) -> str:
        return (self.spec.network.local or self.spec.endpoint).removeprefix("unix:")

    def kill(self, number: int = signal.SIGKILL) -> None:
        os.kill(self.popen.pid, number)

    def wait(self, timeout_s: float = 20.0) -> int:
        return self.popen.wait(timeout_s)

    async def connect(self, **options: object) -> Client:
        async with asyncio.timeout(60):
            while True:
                try:
                    return await Client.connect(self.path, **options)  # type: ignore[arg-type]
                except (FileNotFoundError, ConnectionRefusedError) as error:
                    if self.popen.poll() is not None:
                        raise AssertionError(f"the worker ended: {self.log.read_text()}") from error
                    if error.args and str(error.args[0]) == "stale_epoch":
                        raise
                    await asyncio.sleep(0.02)

    async def ready(self, **options: object) -> Client:
        client = await self.connect(**options)
        if client.welcome.state is not WorkerState.READY:
            await client.status_where(lambda status: status.state is WorkerState.READY, timeout_s=120.0)
            await client.close()
            client = await self.connect(**options)
        return client


@dataclass
class Workers:
    """Starts worker processes; ends those that a test left."""

    folder: Path
    started: list[Process] = field(default_factory=list)
    epoch: int = 100

    def spec(self, role: Role, *, name: str = "", model: str = "fake", **options: object) -> WorkerSpec:
        name = name or f"{role}-{len(self.started)}"
        self.epoch += 1
        values: dict[str, object] = {
            "address": Address(worker=name, epoch=self.epoch),
            "role": role,
            "node": "test",
            "deployment": "test",
            "revision": "r1",
            "model": model,
            "model_path": str(self.folder / "model"),
            "engine": EngineSettings(),
            "endpoint": Endpoint(f"unix:{self.folder}/{name}.sock"),
            "valkey_url": NOWHERE,
            "drain_deadline_s": 20.0,
            "heartbeat_s": 0.1,
        }
        return WorkerSpec(**(values | options))  # type: ignore[arg-type]

    def tcp(self, host: str, name: str, security: LinkSecurity, transfer: TransferChoice) -> dict[str, object]:
        """Options of `spec` for a worker at a free TCP port of `host`, with a unix socket beside it."""
        with socket.create_server((host, 0)) as free:
            endpoint = tcp_endpoint(host, free.getsockname()[1])
        local = Endpoint(f"unix:{self.folder}/{name}.sock")
        return {"endpoint": endpoint, "network": WorkerNetwork(local=local, security=security, transfer=transfer)}

    def start(self, spec: WorkerSpec, *, program: list[str] | None = None) -> Process:
        path = self.folder / f"{spec.address}.json"
        path.write_bytes(msgspec.json.encode(spec))
        log = self.folder / f"{spec.address}.log"
        command = program or [sys.executable, "-m", "tests.workers.fake_worker"]
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        with log.open("wb") as file:
            popen = subprocess.Popen([*command, str(path)], stderr=file, stdin=subprocess.DEVNULL, env=environment)
        process = Process(spec, popen, log)
        self.started.append(process)
        return process

    def stop(self) -> None:
        for process in self.started:
            if process.popen.poll() is None:
                process.kill(signal.SIGCONT)
                process.kill()
            process.wait()


def fake_manifest() -> ModelManifest:
    return ModelManifest(
        name="fake", family="llama", display_name="Fake", source="tests", licence="MIT", weights_fingerprint="w",
        tokenizer_fingerprint="t", parameters=1, max_context=256, block_tokens=4, vocab_size=1000, bos_token_id=None,
        eos_token_ids=(), chat_format="none",
    )  # fmt: skip


@contextmanager
def a_pool() -> Iterator[Workers]:
    with tempfile.TemporaryDirectory(prefix="galley-") as folder:  # short: socket paths have a limit
        pool = Workers(Path(folder))
        (pool.folder / "model").mkdir()
        write_manifest(pool.folder / "model", fake_manifest())
        try:
            yield pool
        finally:
            pool.stop()


@pytest.fixture
def workers() -> Iterator[Workers]:
    """For tests that start, stop and kill processes of their own."""
    with a_pool() as pool:
        yield pool


@pytest.fixture(scope="session")
def lasting_workers() -> Iterator[Workers]:
    """For processes that many tests share: nobody kills them."""
    with a_pool() as pool:
        yield pool


async def connect_pair(prefill: Process, decode: Process) -> Pair:
    return Pair(await prefill.ready(), await decode.ready(), prefill.spec.endpoint)


@pytest.fixture(scope="session")
def lasting_pair(lasting_workers: Workers) -> tuple[Process, Process]:
    """A fake prefill and a fake decode worker, 20 ms a step."""
    model = "fake?step_s=0.02"
    return (
        lasting_workers.start(lasting_workers.spec(Role.PREFILL, model=model)),
        lasting_workers.start(lasting_workers.spec(Role.DECODE, model=model)),
    )


@pytest.fixture
async def pair(lasting_pair: tuple[Process, Process]) -> AsyncIterator[Pair]:
    """Connections of a gateway of this test's own. Request ids are free again when it leaves."""
    pair = await connect_pair(*lasting_pair)
    yield pair
    await pair.prefill.close()
    await pair.decode.close()


@pytest.fixture(scope="session")
def lasting_both(lasting_workers: Workers) -> Process:
    return lasting_workers.start(lasting_workers.spec(Role.BOTH, model="fake?step_s=0.02"))


@pytest.fixture
async def both(lasting_both: Process) -> AsyncIterator[Client]:
    client = await lasting_both.ready()
    yield client
    await client.close()


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """Store folder of the real SmolLM2-135M-Instruct, fetched once and kept between runs."""
    from tests.workers.smollm2 import model_folder

    return model_folder()
