"""One row per request, exact money, sums in any zone, books that agree."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from controlplane.metering.ledger import spent_pico, usage_record
from controlplane.metering.models import LedgerEntry, UsageBucket, WorkerRecord
from controlplane.metering.reconciliation import reconcile
from controlplane.metering.usage import BadUsageQuery, Grouping, Step, UsageQuery, usage_rows, usage_total, zone_named
from tests.controlplane.metering.factories import event

pytestmark = [pytest.mark.integration, pytest.mark.django_db]

OFF_PEAK = datetime(2026, 11, 28, 12, tzinfo=UTC)
PEAK = datetime(2026, 11, 23, 6, tzinfo=UTC)


def query(start: datetime = OFF_PEAK - timedelta(days=10), days: int = 20, zone: str = "UTC") -> UsageQuery:
    return UsageQuery(start=start, end=start + timedelta(days=days), zone=ZoneInfo(zone))


def test_a_request_has_one_row_at_the_price_of_its_admission() -> None:
    first, second = event(OFF_PEAK), event(PEAK)
    assert usage_record([first, second, first]) == [first.request_id, second.request_id]
    assert usage_record([first]) == []
    cheap, dear = LedgerEntry.objects.order_by("amount_pico")
    assert cheap.amount_pico == 30 * 3_000 + 30 * 150_000 + 40 * 600_000
    assert dear.amount_pico == 2 * cheap.amount_pico
    assert (cheap.peak, dear.peak) == (False, True)
    assert usage_total(query()).amount_pico == 3 * cheap.amount_pico


@given(order=st.lists(st.integers(0, 4), min_size=1, max_size=20))
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_telling_twice_in_any_order_changes_nothing(order: list[int]) -> None:
    LedgerEntry.objects.all().delete()
    UsageBucket.objects.all().delete()
    events = [event(OFF_PEAK, miss=number) for number in range(5)]
    for number in order:
        usage_record([events[number], events[0]])
    told = {*order, 0}
    total = usage_total(query())
    assert total.requests == len(told)
    assert total.miss_tokens == sum(told)
    assert total.amount_pico == sum(int(row.amount_pico) for row in LedgerEntry.objects.all())


def test_a_model_without_a_price_is_free_and_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    from controlplane.metering.pricing import PriceTable

    usage_record([event(OFF_PEAK)], table=PriceTable())
    row = LedgerEntry.objects.get()
    assert (row.amount_pico, row.price_entry, row.output_tokens) == (0, None, 40)


def test_hours_are_those_of_the_readers_zone() -> None:
    usage_record([event(datetime(2026, 11, 28, 18, minute, tzinfo=UTC)) for minute in (10, 35)])
    (utc,) = usage_rows(query(), step=Step.HOUR)
    assert utc.at is not None
    assert utc.at.isoformat() == "2026-11-28T18:00:00+00:00"
    rows = usage_rows(query(zone="Asia/Kolkata"), step=Step.HOUR)  # +05:30
    assert [row.at.isoformat() for row in rows if row.at] == ["2026-11-28T23:00:00+05:30", "2026-11-29T00:00:00+05:30"]
    days = usage_rows(query(zone="Asia/Kolkata"), step=Step.DAY)
    assert [row.usage.requests for row in days] == [1, 1]


def test_an_hour_that_comes_twice_is_two_hours() -> None:
    before, after = datetime(2026, 10, 25, 0, 30, tzinfo=UTC), datetime(2026, 10, 25, 1, 30, tzinfo=UTC)
    usage_record([event(before), event(after)])
    rows = usage_rows(query(before - timedelta(days=1), 3, "Europe/Berlin"), step=Step.HOUR)
    assert [row.at.isoformat() for row in rows if row.at] == ["2026-10-25T02:00:00+02:00", "2026-10-25T02:00:00+01:00"]


def test_groups_and_filters() -> None:
    usage_record([event(OFF_PEAK), event(OFF_PEAK, tenant="other", key_id=2, root_key=2, output=400)])
    assert [row.group["tenant"] for row in usage_rows(query(), by=Grouping.TENANT)] == ["other", "acme"]
    assert len(usage_rows(query(), by=Grouping.MODEL)) == 1
    only = UsageQuery(start=OFF_PEAK, end=OFF_PEAK + timedelta(hours=1), zone=ZoneInfo("UTC"), tenants=["acme"])
    assert usage_total(only).requests == 1
    month = {"start": datetime(2026, 11, 1, tzinfo=UTC), "end": datetime(2026, 12, 1, tzinfo=UTC)}
    assert spent_pico(subject="t:acme", **month) == spent_pico(subject="k:1", **month) > 0
    with pytest.raises(BadUsageQuery):
        zone_named("Nowhere/Land")
    with pytest.raises(BadUsageQuery):
        query(days=0)


def test_books_that_agree_and_each_way_in_which_they_do_not() -> None:
    bounds = {"start": OFF_PEAK, "end": OFF_PEAK + timedelta(hours=1)}
    told = event(OFF_PEAK, outcome="length")
    usage_record([told])
    WorkerRecord.objects.create(**worker_record(told.request_id))
    report = reconcile(**bounds)
    assert (report.faults, report.requests, report.unrecorded) == ({}, 1, 0)
    UsageBucket.objects.update(output_tokens=41)
    WorkerRecord.objects.update(output_tokens=39)
    WorkerRecord.objects.create(**worker_record("req_of_nobody"))
    report = reconcile(**bounds)
    assert len(report.wrong_sums) == 1
    assert report.billed_more == [told.request_id]
    assert report.missing == ["req_of_nobody"]
    WorkerRecord.objects.update(output_tokens=41)
    assert reconcile(**bounds).billed_less == [told.request_id]
    with pytest.raises(ValueError, match="quarters"):
        reconcile(start=OFF_PEAK + timedelta(minutes=1), end=OFF_PEAK + timedelta(hours=1))


def worker_record(request_id: str) -> dict[str, object]:
    return {
        "attempt_id": request_id, "request_id": request_id, "worker": "w", "epoch": 1, "way": "local",
        "outcome": "length", "ended_at": OFF_PEAK + timedelta(minutes=1), "pool_hit_tokens": 10,
        "store_hit_tokens": 20, "miss_tokens": 30, "output_tokens": 40,
    }  # fmt: skip
