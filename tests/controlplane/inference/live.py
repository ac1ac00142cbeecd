"""The gateway as its own process under granian, with real PostgreSQL and Valkey, in front of stub workers."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit, urlunsplit

import httpx
import msgspec
import redis
from openai import OpenAI

from tests.controlplane.inference.stub_worker import Script, StubCluster, StubWorker
from tests.running import free_port
from workers.protocol import Role
from workers.spec import LEASE_INDEX, LEASE_TTL_S, lease_key

T = TypeVar("T")
ROOT = Path(__file__).resolve().parents[3]


class StubThread:
    """Stub workers on a loop of their own, announced in Valkey as real ones are."""

    def __init__(self, folder: Path, *, revision: str, valkey_url: str, cluster: StubCluster | None = None) -> None:
        self.cluster = cluster or StubCluster(folder, status_interval_s=0.5)
        self.cluster.revision = revision
        self._valkey = redis.Redis.from_url(valkey_url)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._announcing = threading.Event()
        self._thread.start()
        self._loop.call_soon_threadsafe(self._announce)

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout=20)

    def add(self, role: Role) -> StubWorker:
        return self.call(self.cluster.add(role, name=f"tiny-{role}-0"))

    def script(self, *scripts: Script) -> None:
        self.cluster.scripts = list(scripts)

    def worker(self, role: Role) -> StubWorker:
        return self.cluster.worker(f"tiny-{role}-0")

    def _announce(self) -> None:
        with contextlib.suppress(redis.RedisError):  # a test has taken it away
            for worker in self.cluster.workers.values():
                lease = msgspec.msgpack.encode(worker.lease)
                self._valkey.set(lease_key(worker.address.worker), lease, ex=LEASE_TTL_S)
                self._valkey.zadd(LEASE_INDEX, {worker.address.worker: time.time()})
        self._loop.call_later(0.5, self._announce)

    def stop(self) -> None:
        self.call(self.cluster.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=5)


class LiveGateway:
    """`url`, `key` and a client; `stubs` behind it."""

    def __init__(
        self, *, key: str, models_key: str, sessions: dict[str, str], stubs: StubThread, database: str, log: Path
    ) -> None:
        self.key = key
        self.models_key = models_key
        self.sessions = sessions
        self.stubs = stubs
        self.log = log
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                [
                    sys.executable, "-m", "granian", "--interface", "asgi", "controlplane.asgi:application",
                    "--host", "127.0.0.1", "--port", str(self.port), "--workers", "1",
                ],
                cwd=ROOT,
                env={**os.environ, "DATABASE_URL": _database_url(database)},
                stdout=output,
                stderr=subprocess.STDOUT,
            )  # fmt: skip

    @property
    def headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.key}"}

    def openai(self, **options: Any) -> OpenAI:
        return OpenAI(base_url=f"{self.url}/v1", api_key=self.key, **{"max_retries": 0, **options})

    def post(self, body: Any, **headers: str) -> httpx.Response:
        return httpx.post(f"{self.url}/v1/chat/completions", json=body, headers={**self.headers, **headers}, timeout=30)

    def wait_ready(self, *, within_s: float = 60.0) -> None:
        until = time.monotonic() + within_s
        while time.monotonic() < until:
            if self.process.poll() is not None:
                break
            try:
                if httpx.get(f"{self.url}/readyz", timeout=10).status_code == 200:
                    return
            except httpx.TransportError:
                pass
            time.sleep(0.1)
        raise AssertionError(f"the gateway did not get ready:\n{self.log.read_text()}")

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(timeout=20)


def _database_url(name: str) -> str:
    parts = urlsplit(os.environ["DATABASE_URL"])
    return urlunsplit(parts._replace(path=f"/{name}"))


def eventually(condition: Any, *, within_s: float = 20.0) -> None:
    until = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < until, "it did not happen"
        time.sleep(0.01)


def forget_usage() -> None:
    """What a gateway's requests left in the ledger, and the journals that would be settled into it later: these are
    committed, and other tests count rows.
    """
    from controlplane.config import home
    from controlplane.metering.models import LedgerEntry, UsageBucket, WorkerRecord

    for model in (LedgerEntry, UsageBucket, WorkerRecord):
        model.objects.all().delete()
    shutil.rmtree(home().journal, ignore_errors=True)
