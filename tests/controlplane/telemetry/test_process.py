from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import redis
from asgiref.sync import sync_to_async
from channels.layers import get_channel_layer
from django.db import connections

from controlplane.telemetry import frames, names
from controlplane.telemetry.models import Rollup
from controlplane.telemetry.process import TelemetryProcess
from tests.controlplane.services_of_own import OwnValkey
from tests.controlplane.telemetry.factories import gateway, worker
from tests.controlplane.waiting import await_until
from workers.snapshots import CHANNEL, Snapshot, encode

pytestmark = [pytest.mark.integration, pytest.mark.django_db(transaction=True)]


@pytest.fixture
async def own(valkey_url: str, tmp_path: Path) -> AsyncIterator[OwnValkey]:
    valkey = OwnValkey(tmp_path)
    await sync_to_async(valkey.start)()
    yield valkey
    await sync_to_async(valkey.stop)()


@pytest.fixture
async def process(own: OwnValkey) -> AsyncIterator[TelemetryProcess]:
    stop = asyncio.Event()
    process = TelemetryProcess(own.url)
    running = asyncio.create_task(process.run(stop))
    await await_until(lambda: process.listening, "it listens")
    yield process
    stop.set()
    await running
    await sync_to_async(connections.close_all)()


def publish(own: OwnValkey, *snapshots: Snapshot) -> None:
    with redis.Redis.from_url(own.url) as client:
        for snapshot in snapshots:
            client.publish(CHANNEL, encode(snapshot))


def latest(own: OwnValkey) -> frames.Frame | None:
    with redis.Redis.from_url(own.url) as client:
        data = client.get(names.LATEST_KEY)
    return None if data is None else frames.decoder.decode(data)


def shows(own: OwnValkey, output: int) -> bool:
    with redis.Redis.from_url(own.url) as client:
        data = client.lrange(names.FRAMES_KEY, 0, -1)
    return sum(frames.decoder.decode(frame).tokens.output for frame in data) == output


async def test_from_a_snapshot_to_the_channels_group(own: OwnValkey, process: TelemetryProcess) -> None:
    layer = get_channel_layer()
    assert layer is not None
    channel = await layer.new_channel()
    await layer.group_add(names.GROUP, channel)
    publish(own, worker(seq=1, output=5), gateway(seq=1, running=2))
    async with asyncio.timeout(15):
        while True:
            message = await layer.receive(channel)
            frame = frames.decoder.decode(message["frame"])
            if frame.workers:
                break
    assert message["type"] == "telemetry.frame"
    assert frame.workers[0].worker == "w-0"
    assert frame.running == 2
    first = frame.seq
    assert frames.decoder.decode((await layer.receive(channel))["frame"]).seq == first + 1
    await layer.group_discard(names.GROUP, channel)


async def test_a_restart_of_valkey_loses_no_counter(own: OwnValkey, process: TelemetryProcess) -> None:
    publish(own, worker(seq=1, output=5))
    await await_until(lambda: shows(own, 5), "the first tokens are told")
    await sync_to_async(own.stop)()
    await await_until(lambda: process.aggregator.events["reconnects"] > 0, "the loss is noticed")
    await sync_to_async(own.start)()
    await await_until(lambda: process.listening, "it listens again")
    publish(own, worker(seq=9, output=25))
    await await_until(lambda: shows(own, 25), "all tokens are told")
    await await_until(lambda: not process.valkey.waiting, "no frame waits")


async def test_a_noisy_channel_does_not_stop_it(own: OwnValkey, process: TelemetryProcess) -> None:
    with redis.Redis.from_url(own.url) as client:
        client.publish(CHANNEL, b"\x00noise")
    publish(own, worker(seq=1, output=1))
    await await_until(lambda: shows(own, 1), "it goes on")
    assert process.aggregator.events["undecodable"] == 1


async def test_stopping_writes_the_period_that_has_begun(own: OwnValkey) -> None:
    stop = asyncio.Event()
    process = TelemetryProcess(own.url)
    running = asyncio.create_task(process.run(stop))
    await await_until(lambda: process.listening, "it listens")
    publish(own, worker(seq=1, output=5))
    await await_until(lambda: shows(own, 5), "the tokens are told")
    stop.set()
    await running

    def written() -> int:
        return sum(row.totals["output"] for row in Rollup.objects.all())

    assert await sync_to_async(written)() == 5
    await sync_to_async(connections.close_all)()


async def test_a_successor_counts_on(own: OwnValkey, process: TelemetryProcess) -> None:
    await await_until(lambda: latest(own) is not None, "a frame")
    frame = latest(own)
    assert frame is not None
    assert frame.seq > process._started
    assert all(age < 60 for age in process.loop_ages().values())


async def test_a_loop_that_fails_ends_the_process(own: OwnValkey, monkeypatch: pytest.MonkeyPatch) -> None:
    process = TelemetryProcess(own.url)

    def broken(**_: object) -> None:
        raise RuntimeError("broken")

    monkeypatch.setattr(process.aggregator, "frame", broken)
    with pytest.raises(RuntimeError, match="broken"):
        await process.run(asyncio.Event())
    await sync_to_async(connections.close_all)()
