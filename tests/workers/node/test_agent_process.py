"""`python -m workers.node` with services of its own and the real model: services go, the agent goes, engines stay."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import redis

from controlplane.launcher.services import EmbeddedServices
from tests.running import clean_environment
from tests.workers.conftest import ROOT
from tests.workers.node.factories import kill_all
from tests.workers.protocol_client import Client, prefill_frame
from workers.home import Home
from workers.node import processes
from workers.node.records import ProcessRecord
from workers.protocol import WorkerState
from workers.spec import LEASE_INDEX, lease_key

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]
MODEL = "smollm2-135m-instruct"
WORKER = "lone-both-0"
DEPLOY = f"""
import django; django.setup()
from controlplane.accounts.permissions import SYSTEM
from controlplane.fleet import services
from workers.spec import EngineSettings
services.deployment_create(actor=SYSTEM, name="lone", model="{MODEL}", prefill_replicas=0, decode_replicas=0,
                           both_replicas=1, engine=EngineSettings(pool_blocks=64))
services.reconcile()
"""


@dataclass
class House:
    """A data folder with its services, and an agent."""

    home: Home
    services: EmbeddedServices
    agent: subprocess.Popen[bytes] | None = None

    def environment(self) -> dict[str, str]:
        return clean_environment(
            GALLEY_HOME=str(self.home.root), DATABASE_URL=self.services.postgres.url,
            REDIS_URL=self.services.valkey.url, DJANGO_SETTINGS_MODULE="controlplane.settings",
        )  # fmt: skip

    def run(self, *arguments: str) -> None:
        subprocess.run([sys.executable, *arguments], env=self.environment(), cwd=ROOT, check=True)

    def start_agent(self) -> None:
        log = (self.home.root / "agent.log").open("ab")
        self.agent = subprocess.Popen(
            [sys.executable, "-m", "workers.node"], env=self.environment(), cwd=ROOT, stdout=log, stderr=log
        )
        log.close()

    def end_agent(self, number: signal.Signals) -> None:
        assert self.agent is not None
        self.agent.send_signal(number)
        self.agent.wait(30)

    def engine(self) -> ProcessRecord | None:
        return dict(processes.running(self.home)).get(WORKER)

    def engine_other_than(self, record: ProcessRecord) -> ProcessRecord:
        self.eventually(lambda: (now := self.engine()) is not None and now.epoch > record.epoch)
        found = self.engine()
        assert found is not None
        return found

    def eventually(self, condition: Callable[[], object], timeout_s: float = 120.0) -> None:
        until = time.monotonic() + timeout_s
        while not condition():
            assert time.monotonic() < until, (self.home.root / "agent.log").read_text()[-3000:]
            time.sleep(0.1)


@pytest.fixture
def house(smollm2_path: Path) -> Iterator[House]:
    folder = Path(tempfile.mkdtemp(prefix="galley-"))
    house = House(Home(folder), EmbeddedServices(Home(folder)))
    shutil.copytree(smollm2_path, house.home.models / MODEL)
    try:
        with house.services:
            house.run("manage.py", "migrate", "-v", "0")
            house.start_agent()
            house.eventually(lambda: b"node agent of local started" in (folder / "agent.log").read_bytes())
            yield house
    finally:
        if house.agent is not None and house.agent.poll() is None:
            house.agent.kill()
            house.agent.wait()
        kill_all(folder)
        shutil.rmtree(folder)


async def serves(record: ProcessRecord) -> None:
    """The engine of this very epoch answers a request."""
    path = record.endpoint.removeprefix("unix:")
    for _ in range(600):
        try:
            client = await Client.connect(path)
            break
        except (FileNotFoundError, ConnectionRefusedError):
            await asyncio.sleep(0.1)
    assert client.welcome.address.epoch == record.epoch
    if client.welcome.state is not WorkerState.READY:
        await client.status_where(lambda status: status.state is WorkerState.READY, timeout_s=120.0)
    client.send(prefill_frame("a", client.welcome, [1, 2, 3], 4, deadline_s=120.0))
    await client.until(lambda: client.about("a").ended, timeout_s=120.0)
    assert client.about("a").failed is None
    await client.close()


def test_engines_outlive_services_and_agents(house: House) -> None:
    house.run("-c", DEPLOY)
    house.eventually(house.engine)
    first = house.engine()
    assert first is not None
    asyncio.run(serves(first))
    with redis.Redis.from_url(house.services.valkey.url) as valkey:
        house.eventually(lambda: valkey.exists(lease_key(WORKER)))

    house.services.stop()  # PostgreSQL and Valkey are away
    time.sleep(3)
    assert house.engine() == first
    asyncio.run(serves(first))
    os.kill(first.pid, signal.SIGKILL)  # the last wanted state still holds
    second = house.engine_other_than(first)
    house.services.__enter__()
    house.end_agent(signal.SIGKILL)
    house.start_agent()
    asyncio.run(serves(second))  # adopted, not restarted
    with redis.Redis.from_url(house.services.valkey.url) as valkey:
        house.eventually(lambda: valkey.exists(lease_key(WORKER)))
        house.eventually(lambda: valkey.zscore(LEASE_INDEX, WORKER))

    house.end_agent(signal.SIGTERM)
    left = house.engine()
    assert left is not None
    assert (left.pid, left.epoch) == (second.pid, second.epoch)
    house.run("-m", "workers.node.stop")
    assert house.engine() is None
