"""The gateway's loops with a real Valkey that goes away and comes back."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
import pytest
import redis.asyncio

from controlplane.inference.catalog import Route
from controlplane.inference.limits import GatewayLimits
from controlplane.inference.runtime import Gateway
from tests.controlplane.inference.conftest import eventually, write_tiny_model
from tests.controlplane.inference.stub_worker import REVISION, StubCluster
from workers import snapshots
from workers.home import Home
from workers.protocol import Role
from workers.spec import LEASE_INDEX, LEASE_INDEX_KEPT_S, lease_key

pytestmark = pytest.mark.integration


class Switch:
    """A port in front of Valkey that can be turned off: connections end, new ones are refused."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._parts = parts
        self._target = (parts.hostname, parts.port)
        self._writers: set[asyncio.StreamWriter] = set()
        self.port = 0

    @property
    def url(self) -> str:
        return self._parts._replace(netloc=self._parts.netloc.replace(f":{self._target[1]}", f":{self.port}")).geturl()

    async def on(self) -> None:
        self._server = await asyncio.start_server(self._relay, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def off(self) -> None:
        self._server.close()
        for writer in self._writers:
            writer.close()

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        back, forth = await asyncio.open_connection(*self._target)
        self._writers |= {writer, forth}
        await asyncio.gather(self._pump(reader, forth), self._pump(back, writer))
        self._writers -= {writer, forth}

    @staticmethod
    async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                writer.write(data)
        writer.close()


@pytest.fixture
async def switch(valkey_url: str) -> AsyncIterator[Switch]:
    made = Switch(valkey_url)
    await made.on()
    yield made
    await made.off()


@pytest.fixture
async def cluster(socket_folder: Path) -> AsyncIterator[StubCluster]:
    made = StubCluster(socket_folder)
    yield made
    await made.stop()


async def announce(valkey_url: str, cluster: StubCluster) -> None:
    async with redis.asyncio.Redis.from_url(valkey_url) as valkey:
        for worker in cluster.workers.values():
            await valkey.set(lease_key(worker.address.worker), msgspec.msgpack.encode(worker.lease))
            await valkey.zadd(LEASE_INDEX, {worker.address.worker: time.time()})


def routes() -> list[Route]:
    return [
        Route(
            deployment="tiny",
            model="tiny-model",
            aliases=(),
            revision=REVISION,
            created=1,
            max_context=None,
            wanted=True,
            workers=("tiny-both-0",),
        )
    ]


async def test_known_workers_serve_on_while_valkey_is_away(
    valkey_url: str, switch: Switch, cluster: StubCluster, tmp_path: Path
) -> None:
    write_tiny_model(tmp_path / "models" / "tiny-model")
    await cluster.add(Role.BOTH, name="tiny-both-0")
    await announce(valkey_url, cluster)
    limits = GatewayLimits(
        discovery_s=0.05, catalog_s=0.05, snapshot_s=0.05, ready_cache_s=0.0, valkey_wait_s=0.5, backoff_last_s=0.1
    )
    gateway = Gateway(
        home=Home(tmp_path),
        valkey_url=switch.url,
        secret=b"secret",
        routes=routes,
        limits=limits,
    )
    await gateway.start()
    try:
        assert gateway.connections["tiny-both-0"].usable
        assert (await gateway.readiness.check()).ready
        await switch.off()
        discovery = gateway.loops[1]
        await eventually(lambda: bool(discovery.problem))
        verdict = await gateway.readiness.check()
        assert verdict.ready
        assert "discovery" in verdict.loops
        # A worker that restarts meanwhile is found again at its endpoint, without a lease.
        await cluster.worker("tiny-both-0").restart()
        await eventually(lambda: gateway.connections["tiny-both-0"].address.epoch == 2)
        await eventually(lambda: gateway.connections["tiny-both-0"].usable)
        async with redis.asyncio.Redis.from_url(valkey_url) as valkey, valkey.pubsub() as pubsub:
            await pubsub.subscribe(snapshots.CHANNEL)
            await switch.on()
            await eventually(lambda: not discovery.problem)
            async with asyncio.timeout(5):
                message = None
                while message is None:
                    message = await pubsub.get_message(ignore_subscribe_messages=True, timeout=1.0)
        snapshot = snapshots.decode(message["data"])
        assert isinstance(snapshot, snapshots.GatewaySnapshot)
        assert snapshot.gateway == gateway.name
    finally:
        await gateway.stop()


async def test_workers_without_a_row_are_found_by_their_lease(
    valkey_url: str, cluster: StubCluster, tmp_path: Path
) -> None:
    await cluster.add(Role.BOTH, name="stray")
    await announce(valkey_url, cluster)
    gateway = Gateway(home=Home(tmp_path), valkey_url=valkey_url, secret=b"s", routes=list)
    await gateway.start()
    try:
        await eventually(lambda: "stray" in gateway.connections and gateway.connections["stray"].usable)
        assert (await gateway.readiness.check()).reason == "nothing is deployed"
    finally:
        await gateway.stop()


async def test_names_that_nobody_renews_leave_the_index(valkey_url: str, tmp_path: Path) -> None:
    gateway = Gateway(home=Home(tmp_path), valkey_url=valkey_url, secret=b"s", routes=list)
    async with redis.asyncio.Redis.from_url(valkey_url) as valkey:
        now = time.time()
        await valkey.zadd(LEASE_INDEX, {"gone": now - LEASE_INDEX_KEPT_S - 60, "lately": now - 60})
        await gateway.start()
        try:
            assert await valkey.zrange(LEASE_INDEX, 0, -1) == [b"lately"]
        finally:
            await gateway.stop()


async def test_salts_differ_by_tenant_and_secret(tmp_path: Path) -> None:
    one, two = (
        Gateway(home=Home(tmp_path), valkey_url="redis://127.0.0.1:1", secret=secret, routes=list)
        for secret in (b"one", b"two")
    )
    assert one.salt("a") == one.salt("a")
    assert len({one.salt("a"), one.salt("b"), two.salt("a")}) == 3
