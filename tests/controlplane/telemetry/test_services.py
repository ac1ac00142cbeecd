from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from controlplane.telemetry import selectors, services, tasks
from controlplane.telemetry.models import COARSE_S, FINE_S, Rollup
from controlplane.telemetry.totals import Totals
from tests.controlplane.telemetry.factories import histogram

pytestmark = [pytest.mark.integration, pytest.mark.django_db]

NOON = datetime(2026, 11, 29, 12, tzinfo=UTC)


def store(at: datetime, *, output: int = 10, writer: int = 1, resolution: int = FINE_S) -> None:
    totals = Totals(seconds=10, output=output, ttft=histogram(0.12).counts, ended={"stop": 1}, revenue_pico=10**15)
    services.rollup_store(resolution=resolution, at=at, writer=writer, totals=totals)


def test_writing_again_replaces_and_writers_add_up() -> None:
    store(NOON, output=1)
    store(NOON, output=5)
    store(NOON, output=7, writer=2)
    assert Rollup.objects.count() == 2
    assert services.totals_of(Rollup.objects.all()).output == 12


def test_history_in_the_shape_of_frames() -> None:
    for number in range(6):
        store(NOON + timedelta(seconds=10 * number), output=100)
    store(NOON, output=50, writer=2)
    history = selectors.history("10s", NOON, NOON + timedelta(seconds=50))
    assert [frame["at"] for frame in history] == [NOON.timestamp() + 10 * number for number in range(5)]
    assert history[0]["tokens"]["output"] == 150
    assert history[0]["tokens_per_s"]["output"] == 7.5  # over the 20 s that two writers observed
    assert history[1]["ttft_ms"]["p50"] == 125.0
    assert history[1]["seq"] == 0
    with pytest.raises(ValueError, match="1h"):
        selectors.history("1h", NOON, NOON)


def test_condensing_loses_nothing_and_is_idempotent() -> None:
    start = NOON - timedelta(minutes=10)
    for number in range(60):
        store(start + timedelta(seconds=10 * number))
    store(NOON, output=10**6)  # of the period that has begun
    assert services.rollups_condense(now=NOON + timedelta(minutes=1)) == 2
    assert services.rollups_condense(now=NOON + timedelta(minutes=1)) == 2  # late parts might have come
    coarse = Rollup.objects.filter(resolution=COARSE_S)
    assert [row.at for row in coarse.order_by("at")] == [start, start + timedelta(minutes=5)]
    assert services.totals_of(coarse).output == 600
    frames = selectors.history("5m", start, NOON)
    assert [frame["tokens_per_s"]["output"] for frame in frames] == [1.0, 1.0]
    assert frames[0]["ttft_ms"]["p50"] == 125.0


def test_late_parts_are_taken_up_for_an_hour_only() -> None:
    recent, old = NOON - timedelta(minutes=20), NOON - timedelta(hours=3)
    store(recent)
    store(old)
    services.rollups_condense(now=NOON)
    store(recent + timedelta(seconds=10))
    store(old + timedelta(seconds=10))
    assert services.rollups_condense(now=NOON) == 1
    coarse = {row.at: row.totals["output"] for row in Rollup.objects.filter(resolution=COARSE_S)}
    assert coarse == {recent: 20, old: 10}


def test_pruning_in_bounded_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(services, "PRUNE_BATCH", 4)
    monkeypatch.setattr(services, "PRUNE_BATCHES", 2)
    for number in range(10):
        store(NOON - timedelta(days=2, seconds=10 * number))
    store(NOON - timedelta(hours=23))
    store(NOON - timedelta(days=91), resolution=COARSE_S)
    store(NOON - timedelta(days=89), resolution=COARSE_S)
    assert services.rollups_prune(now=NOON) == 8 + 1
    assert services.rollups_prune(now=NOON) == 2
    assert services.rollups_prune(now=NOON) == 0
    assert Rollup.objects.count() == 2


def test_nothing_is_pruned_before_it_is_rolled_up() -> None:
    at = services.period_start(datetime.now(UTC), COARSE_S) - services.FINE_KEPT
    store(at)
    store(at - timedelta(days=1))
    tasks.prune_rollups()
    assert Rollup.objects.filter(resolution=COARSE_S, at=at).exists()
    assert not Rollup.objects.filter(at=at - timedelta(days=1)).exists()
