from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import redis
from asgiref.sync import sync_to_async
from django.db import OperationalError, connections

from controlplane.telemetry import delivery, frames, names, selectors, services
from controlplane.telemetry.aggregator import Aggregator
from controlplane.telemetry.delivery import RollupDelivery, ValkeyDelivery
from controlplane.telemetry.frames import Frame, GatewayLine
from controlplane.telemetry.metrics import metrics_state
from controlplane.telemetry.models import Rollup
from controlplane.telemetry.totals import Totals
from tests.controlplane.services_of_own import OwnValkey

pytestmark = pytest.mark.integration


def frame(seq: int) -> Frame:
    line = GatewayLine(gateway="g", running=seq, waiting=0, observed_age_s=0.0)
    return Frame(seq=seq, at=1000.0 + seq, gateways=[line])


async def deliver(to: ValkeyDelivery, made: Frame) -> bool:
    return await to.deliver(made, metrics_state(Aggregator(), made, now=0.0, gauges={}))


async def test_a_snapshot_has_the_newest_frame_whole_and_the_older_ones_in_order(valkey_url: str) -> None:
    valkey = ValkeyDelivery(valkey_url, Counter())
    assert await sync_to_async(selectors.snapshot)(10) == {"seq": 0, "frames": []}
    for seq in range(1, 21):
        assert await deliver(valkey, frame(seq))
    snapshot = await sync_to_async(selectors.snapshot)(5)
    assert snapshot["seq"] == 20
    assert [made["seq"] for made in snapshot["frames"]] == [16, 17, 18, 19, 20]
    assert [len(made["gateways"]) for made in snapshot["frames"]] == [0, 0, 0, 0, 1]
    state = await sync_to_async(selectors.metrics_state)()
    assert state is not None
    assert state.frame.seq == 20
    await valkey.close()


async def test_the_list_is_bounded(valkey_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery, "FRAMES_KEPT", 5)
    valkey = ValkeyDelivery(valkey_url, Counter())
    for seq in range(1, 10):
        await deliver(valkey, frame(seq))
    with redis.Redis.from_url(valkey_url) as client:
        assert client.llen(names.FRAMES_KEY) == 5
    await valkey.close()


async def test_old_frames_are_not_passed_off_as_recent(valkey_url: str) -> None:
    valkey = ValkeyDelivery(valkey_url, Counter())
    await deliver(valkey, frame(1))
    await deliver(valkey, frame(500))  # the telemetry process was away in between
    snapshot = await sync_to_async(selectors.snapshot)(300)
    assert [made["seq"] for made in snapshot["frames"]] == [500]
    await valkey.close()


async def test_frames_wait_for_valkey_and_come_in_order(valkey_url: str, tmp_path: Path) -> None:
    own = OwnValkey(tmp_path)
    events: Counter[str] = Counter()
    valkey = ValkeyDelivery(own.url, events)
    assert not await deliver(valkey, frame(1))
    assert not await deliver(valkey, frame(2))
    assert (len(valkey.waiting), events["deliveries_failed"]) == (2, 2)
    await sync_to_async(own.start)()
    try:
        assert await deliver(valkey, frame(3))
        with redis.Redis.from_url(own.url) as client:
            stored = [frames.decoder.decode(data).seq for data in client.lrange(names.FRAMES_KEY, 0, -1)]
        assert stored == [3, 2, 1]
        assert not valkey.waiting
    finally:
        await valkey.close()
        await sync_to_async(own.stop)()


async def test_frames_that_wait_are_bounded() -> None:
    valkey = ValkeyDelivery("redis://127.0.0.1:1/0", Counter())
    assert valkey.waiting.maxlen == selectors.FRAMES_KEPT


@pytest.mark.django_db(transaction=True)
async def test_periods_of_ten_seconds_are_written_when_they_end() -> None:
    rollups = RollupDelivery(writer=7, events=Counter())
    for second in range(1000, 1025):
        rollups.add(second + 0.5, Totals(seconds=1, output=1))
    assert await rollups.write()
    rollups.close_period()
    assert await rollups.write()

    def rows() -> list[tuple[float, int, int]]:
        return [(row.at.timestamp(), row.writer, row.totals["output"]) for row in Rollup.objects.order_by("at")]

    assert await sync_to_async(rows)() == [(1000, 7, 10), (1010, 7, 10), (1020, 7, 5)]
    await sync_to_async(connections.close_all)()


async def test_periods_wait_for_the_database_within_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    def away(**_: object) -> None:
        raise OperationalError("away")

    monkeypatch.setattr(services, "rollup_store", away)
    monkeypatch.setattr(delivery, "ROLLUPS_KEPT", 3)
    events: Counter[str] = Counter()
    rollups = RollupDelivery(writer=7, events=events)
    for second in range(0, 100, 10):
        rollups.add(second, Totals(seconds=1))
    assert not await rollups.write()
    assert [period for period, _ in rollups.waiting] == [60, 70, 80]
    assert (events["rollups_dropped"], events["rollups_failed"]) == (6, 1)
