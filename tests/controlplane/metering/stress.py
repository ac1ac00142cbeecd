"""Requests that end in every way there is, gateways that are killed, a Valkey that restarts; then a check of the books.

Used by a short test and by `benchmarks/ledger_stress.py`, which runs ten thousand requests.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import redis
from django.db import connections
from django.utils import timezone

from controlplane.accounts.limits import Limits
from controlplane.accounts.models import Tenant
from controlplane.accounts.permissions import SYSTEM, Scope
from controlplane.accounts.services import key_create, tenant_create
from controlplane.config import home
from controlplane.fleet.models import Deployment
from controlplane.fleet.services import deployment_create
from controlplane.metering.budgets import budgets_seed
from controlplane.metering.events import GATEWAY_LOST, USAGE_STREAM
from controlplane.metering.models import LedgerEntry, UsageBucket
from controlplane.metering.pricing import amount_pico, price_table
from controlplane.metering.settling import settle_journals, settle_stream
from tests.controlplane.inference.live import ROOT, StubThread
from tests.controlplane.inference.stub_worker import Script, StubCluster, StubWorker
from tests.controlplane.services_of_own import OwnValkey
from tests.running import free_port
from workers.protocol import ErrorCode, Frame, Prefill, RequestId, Role, Scheduled, Tokens, unpack_tokens
from workers.spec import EngineSettings

logging.getLogger("httpx").setLevel(logging.WARNING)  # one line per request otherwise

TENANT = "stress"
LETTER = "a"
FINISHED = {"stop", "length"}
FAILED_OUTCOME = ErrorCode.INTERNAL.value


@dataclass
class Truth:
    """What the workers did for one request."""

    prompt: int = 0
    hit: int = 0
    emitted: int = 0


class RecordingWorker(StubWorker):
    """Writes down what it tells gateways."""

    truths: defaultdict[str, Truth]

    def _send(self, request_id: RequestId, writer: asyncio.StreamWriter, frame: Frame) -> bool:
        sent = super()._send(request_id, writer, frame)
        truth = self.truths[request_id.partition(".")[0]]
        if sent and isinstance(frame, Scheduled):
            truth.hit = frame.pool_hit_tokens + frame.store_hit_tokens
            truth.prompt = truth.hit + frame.miss_tokens
        elif sent and isinstance(frame, Tokens):
            truth.emitted += sum(len(delta.tokens) for delta in frame.deltas)
        return sent


class RecordingCluster(StubCluster):
    def __init__(self, folder: Path, *, letter: int, status_interval_s: float) -> None:
        super().__init__(folder, status_interval_s=status_interval_s)
        self.truths: defaultdict[str, Truth] = defaultdict(Truth)
        self._letter = letter
        self.choose = self._chosen

    async def add(self, role: Role, *, name: str | None = None) -> StubWorker:
        worker = RecordingWorker(self, name or str(role), role)
        worker.truths = self.truths
        self.workers[worker.address.worker] = worker
        return await worker.start()

    def _chosen(self, frame: Prefill) -> Script:
        """The same for the same request, whoever asks."""
        rng = random.Random(frame.request_id)
        length = rng.randint(2, 19)
        prompt = len(unpack_tokens(frame.tokens))
        return Script(
            tokens=[self._letter] * (length - 1) + [2],
            hit_tokens=rng.randint(0, prompt - 1),
            delay_s=rng.choice([0.0, 0.01, 0.03]),
            fail=ErrorCode.INTERNAL if rng.random() < 0.05 else None,
        )


@dataclass
class Outcomes:
    """What the client saw."""

    counted: Counter[str] = field(default_factory=Counter)
    received: dict[str, int] = field(default_factory=dict)
    """Letters that came of a request, by its id."""


@dataclass
class Gateway:
    """A real gateway process, to be killed."""

    database: str
    valkey_url: str
    log: Path
    port: int = field(default_factory=free_port)
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        with self.log.open("ab") as output:
            self.process = subprocess.Popen(
                [
                    sys.executable, "-m", "granian", "--interface", "asgi", "controlplane.asgi:application",
                    "--host", "127.0.0.1", "--port", str(self.port), "--workers", "1",
                ],
                cwd=ROOT,
                env={**os.environ, "DATABASE_URL": self.database, "REDIS_URL": self.valkey_url},
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )  # fmt: skip
        until = time.monotonic() + 60
        while time.monotonic() < until:
            with contextlib.suppress(httpx.TransportError):
                if httpx.get(f"{self.url}/readyz", timeout=10).status_code == 200:
                    return
            time.sleep(0.1)
        raise AssertionError(f"the gateway did not get ready:\n{self.log.read_text()[-4000:]}")

    def kill(self) -> None:
        """SIGKILL to the server and its workers: nobody says goodbye."""
        assert self.process is not None
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(timeout=20)

    def stop(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            self.process.wait(timeout=30)


class ControlQueue:
    """Does what the tasks `settle` and `recover` do, on a thread."""

    def __init__(self, valkey_url: str) -> None:
        self._client = redis.Redis.from_url(valkey_url, socket_timeout=5)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.failures: Counter[str] = Counter()
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(0.3):
            self.turn()
        connections.close_all()

    def turn(self) -> None:
        try:
            settle_stream(self._client)
            settle_journals(self._client, home().journal)
            budgets_seed(self._client, now=timezone.now())
        except redis.RedisError as error:  # it is being restarted: the next turn does it
            self.failures[str(error)[:200]] += 1

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(timeout=60)


@dataclass
class Stress:
    """Everything of one run. `requests` in all, `kills` of the gateway and `valkey_restarts` spread over them."""

    requests: int
    kills: int
    valkey_restarts: int
    concurrency: int = 24
    seed: int = 0

    @contextlib.contextmanager
    def running(self, *, database: str, folder: Path, model: Path) -> Iterator[Run]:
        shutil.copytree(model, home().models / "tiny-model", dirs_exist_ok=True)
        valkey = OwnValkey(folder / "valkey")
        valkey.start()
        keys = self._accounts()
        deployment = deployment_create(
            actor=SYSTEM,
            name="tiny",
            model="tiny-model",
            prefill_replicas=1,
            decode_replicas=1,
            engine=EngineSettings(),
        )
        assert deployment.revision is not None
        from controlplane.inference.tokenization import load_tokenizer

        (letter,) = load_tokenizer(home().models / "tiny-model").encode_foreign(LETTER)
        cluster = RecordingCluster(folder, letter=letter, status_interval_s=0.5)
        stubs = StubThread(folder, revision=deployment.revision.hash, valkey_url=valkey.url, cluster=cluster)
        for role in (Role.PREFILL, Role.DECODE):
            stubs.add(role)
        queue = ControlQueue(valkey.url)
        gateway = Gateway(database, valkey.url, folder / "gateway.log")
        try:
            gateway.start()
            yield Run(self, gateway, valkey, queue, cluster, keys)
        finally:
            gateway.stop()
            queue.stop()
            stubs.stop()
            valkey.stop()
            Deployment.objects.filter(name="tiny").delete()
            Tenant.objects.filter(slug=TENANT).delete()
            shutil.rmtree(home().models / "tiny-model")

    @staticmethod
    def _accounts() -> dict[str, str]:
        tenant = tenant_create(
            actor=SYSTEM,
            slug=TENANT,
            name="Stress",
            limits=Limits(
                requests_per_minute=1_000_000,
                tokens_per_minute=100_000_000,
                concurrent_requests=1000,
                budget_micro_usd=1_000 * 10**6,
            ),
        )
        wide = key_create(actor=SYSTEM, tenant=tenant, name="wide", scopes=[Scope.INFERENCE])[1]
        narrow = key_create(
            actor=SYSTEM,
            tenant=tenant,
            name="narrow",
            scopes=[Scope.INFERENCE],
            limits=Limits(requests_per_minute=60, concurrent_requests=1, budget_micro_usd=100 * 10**6),
        )[1]
        return {"wide": wide, "narrow": narrow}


@dataclass
class Run:
    plan: Stress
    gateway: Gateway
    valkey: OwnValkey
    queue: ControlQueue
    cluster: RecordingCluster
    keys: dict[str, str]
    outcomes: Outcomes = field(default_factory=Outcomes)

    async def go(self) -> None:
        """All requests; kills and restarts happen on the way."""
        rng = random.Random(self.plan.seed)
        todo = list(range(self.plan.requests))
        troubles = self._troubles()
        async with httpx.AsyncClient(base_url=self.gateway.url, timeout=60) as client:

            async def work() -> None:
                while todo:
                    number = todo.pop(0)
                    if (trouble := troubles.pop(number, None)) is not None:
                        await asyncio.to_thread(trouble)
                    await self._one(client, rng)

            await asyncio.gather(*(work() for _ in range(self.plan.concurrency)))

    def _troubles(self) -> dict[int, Any]:
        def kill() -> None:
            self.gateway.kill()
            self.gateway.start()

        def restart() -> None:
            os.kill(self.valkey.pid, signal.SIGKILL)
            self.valkey.stop()
            time.sleep(0.5)
            self.valkey.start()

        parts = self.plan.kills + self.plan.valkey_restarts + 1
        every = self.plan.requests // parts
        kinds = [kill] * self.plan.kills + [restart] * self.plan.valkey_restarts
        random.Random(self.plan.seed).shuffle(kinds)
        return {every * (index + 1): kind for index, kind in enumerate(kinds)}

    async def _one(self, client: httpx.AsyncClient, rng: random.Random) -> None:
        key = self.keys["narrow" if rng.random() < 0.05 else "wide"]
        stream = rng.random() < 0.85
        leave_after = rng.randint(0, 5) if rng.random() < 0.3 else None
        body = {
            "model": "tiny",
            "stream": stream,
            "max_tokens": 20,
            "messages": [{"role": "user", "content": "Hello " * rng.randint(1, 20)}],
        }
        while True:
            try:
                return await self._ask(client, body, key, leave_after)
            except httpx.ConnectError:  # it is being restarted: nothing was sent
                await asyncio.sleep(0.2)
            except httpx.TransportError:
                self.outcomes.counted["connection lost"] += 1
                return None

    async def _ask(self, client: httpx.AsyncClient, body: Any, key: str, leave_after: int | None) -> None:
        request = client.build_request(
            "POST", "/v1/chat/completions", json=body, headers={"authorization": f"Bearer {key}"}
        )
        response = await client.send(request, stream=True)
        try:
            self.outcomes.counted[str(response.status_code)] += 1
            if response.status_code != 200:
                if response.status_code in (429, 503):
                    await asyncio.sleep(0.3)  # refusals are quick: they must not use up the run
                return
            request_id = response.headers["x-request-id"]
            self.outcomes.received[request_id] = 0
            if not body["stream"]:
                await response.aread()
                self.outcomes.received[request_id] = response.json()["usage"]["completion_tokens"]
                return
            async for line in response.aiter_lines():
                if line.startswith("data: {"):
                    self._count(request_id, json.loads(line.removeprefix("data: ")))
                if leave_after is not None and self.outcomes.received[request_id] >= leave_after:
                    self.outcomes.counted["left"] += 1
                    return
        finally:
            await response.aclose()

    def _count(self, request_id: str, event: Any) -> None:
        for choice in event.get("choices", ()):
            self.outcomes.received[request_id] += len(choice["delta"].get("content") or "")

    def settle(self) -> None:
        """Stop the gateway and empty what is on its way."""
        self.gateway.stop()
        self.queue.stop()
        self.queue.turn()

    def check(self) -> Counter[str]:
        """Raises AssertionError naming what is wrong; the outcomes in the ledger."""
        rows = {row.request_id: row for row in LedgerEntry.objects.filter(tenant=TENANT)}
        for request_id, truth in self.cluster.truths.items():
            if not request_id.startswith("probe-"):
                self._check_row(rows[request_id], truth)
        for request_id, received in self.outcomes.received.items():
            row = rows[request_id]
            assert received <= row.output_tokens or not received, f"{request_id}: {received} came, {row.output_tokens}"
        for request_id in rows.keys() - self.cluster.truths.keys():
            row = rows[request_id]
            used = row.pool_hit_tokens + row.store_hit_tokens + row.miss_tokens + row.output_tokens
            assert used == 0, f"{request_id} ({row.outcome}) never reached a worker and is billed"
        self._check_money(list(rows.values()))
        self._check_leaks()
        return Counter(row.outcome for row in rows.values())

    @staticmethod
    def _check_row(row: LedgerEntry, truth: Truth) -> None:
        prompt = (row.pool_hit_tokens + row.store_hit_tokens, row.miss_tokens)
        what = f"{row.request_id} ({row.outcome}): {prompt}, {row.output_tokens} out; {truth}"
        if row.outcome in FINISHED:
            assert prompt == (truth.hit, truth.prompt - truth.hit), what
            assert row.output_tokens == truth.emitted, what
        elif row.outcome == FAILED_OUTCOME:
            assert (*prompt, row.output_tokens) == (0, 0, 0), what
        else:
            assert row.outcome in {GATEWAY_LOST, "disconnected", "failed"}, what
            assert row.output_tokens <= truth.emitted, what
            assert sum(prompt) in (0, truth.prompt), what

    @staticmethod
    def _check_money(rows: list[LedgerEntry]) -> None:
        table = price_table()
        total = 0
        for row in rows:
            price = table.price_at(row.model_name, row.admitted_at)
            hits = row.pool_hit_tokens + row.store_hit_tokens
            amount = amount_pico(price, hits, row.miss_tokens, row.output_tokens)
            assert int(row.amount_pico) == amount, row.request_id
            total += amount
        buckets = list(UsageBucket.objects.filter(tenant=TENANT))
        assert sum(int(bucket.amount_pico) for bucket in buckets) == total
        assert sum(bucket.requests for bucket in buckets) == len(rows)
        assert sum(bucket.output_tokens for bucket in buckets) == sum(row.output_tokens for row in rows)

    def _check_leaks(self) -> None:
        left = [str(path) for path in home().journal.rglob("*")]
        assert left == [], f"journals are left: {left}; {dict(self.queue.failures)}"
        with redis.Redis.from_url(self.valkey.url) as client:
            assert client.xlen(USAGE_STREAM) == 0
            active = {key.decode(): client.zcard(key) for key in client.scan_iter("galley:limits:*:active")}
            assert not any(active.values()), active
            held = {key.decode(): client.hlen(key) for key in client.scan_iter("galley:limits:gateway:*")}
            assert not any(held.values()), held
            spent = 0
            for key in client.scan_iter(f"galley:limits:t:{TENANT}:money:*"):
                money = {name.decode(): int(value) for name, value in client.hgetall(key).items()}
                spent += money.pop("spent")
                assert money.pop("pending", 0) == 0, (key, money)
                assert money == {}, f"{key!r} still holds {list(money)[:5]}"
            total = sum(int(bucket.amount_pico) for bucket in UsageBucket.objects.filter(tenant=TENANT))
            assert 0 <= spent * 1000 - total < 2000, (spent, total)  # each month is rounded up
