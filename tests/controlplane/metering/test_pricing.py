from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.metering.pricing import Entry, NoPrice, Price, PriceTable, Window, amount_pico

OFF = Price(hit=3_000, miss=150_000, output=600_000, peak=False, entry_id=1)
PEAK = Price(hit=6_000, miss=300_000, output=1_200_000, peak=True, entry_id=1)
WEEKDAYS = 0b0011111
TABLE = PriceTable(
    entries=(
        Entry(
            entry_id=1, model="", off_peak=OFF, peak=PEAK, valid_from=datetime(2026, 1, 1, tzinfo=UTC), valid_to=None
        ),
    ),
    windows=(Window(WEEKDAYS, time(1), time(4)), Window(WEEKDAYS, time(6), time(10))),
    holidays=frozenset({date(2026, 10, 1)}),
)
TOKENS = st.integers(min_value=0, max_value=10**12)


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


@pytest.mark.parametrize(
    ("instant", "peak"),
    [
        ("2026-11-23T00:59:59.999999", False),  # a Monday
        ("2026-11-23T01:00:00", True),
        ("2026-11-23T03:59:59.999999", True),
        ("2026-11-23T04:00:00", False),
        ("2026-11-23T05:59:59.999999", False),
        ("2026-11-23T06:00:00", True),
        ("2026-11-23T09:59:59.999999", True),
        ("2026-11-23T10:00:00", False),
        ("2026-11-27T01:00:00", True),  # Friday
        ("2026-11-28T01:00:00", False),  # Saturday
        ("2026-11-29T01:00:00", False),  # Sunday
        ("2026-10-01T01:00:00", False),  # a holiday, a Thursday
        ("2026-09-30T01:00:00", True),
    ],
)
def test_peak_to_the_instant(instant: str, peak: bool) -> None:
    assert TABLE.price_at("any", at(instant)) == (PEAK if peak else OFF)


def test_the_zone_of_the_question_does_not_matter() -> None:
    beijing = datetime(2026, 11, 23, 9, 0, tzinfo=timezone(timedelta(hours=8)))
    assert TABLE.is_peak(beijing)
    assert not TABLE.is_peak(beijing - timedelta(microseconds=1))


def test_an_instant_without_a_zone_is_no_instant() -> None:
    with pytest.raises(ValueError, match="time zone"):
        TABLE.price_at("any", datetime(2026, 11, 23))


def test_validity_to_the_instant_and_the_models_own_price_first() -> None:
    change = at("2026-12-01T00:00:00")
    own = Price(hit=1, miss=2, output=3, peak=False, entry_id=2)
    table = PriceTable(
        entries=(
            *TABLE.entries,
            Entry(
                entry_id=2, model="m", off_peak=own, peak=own, valid_from=change, valid_to=change + timedelta(days=1)
            ),
        )
    )
    assert table.price_at("m", change - timedelta(microseconds=1)) == OFF
    assert table.price_at("m", change) == own
    assert table.price_at("m", change + timedelta(days=1) - timedelta(microseconds=1)) == own
    assert table.price_at("m", change + timedelta(days=1)) == OFF
    assert table.price_at("other", change) == OFF


def test_before_all_prices_there_is_none() -> None:
    with pytest.raises(NoPrice, match="any at 2025"):
        TABLE.price_at("any", at("2025-12-31T23:59:59"))


def test_amounts_in_pico_dollars() -> None:
    assert amount_pico(OFF, hit=1_000_000, miss=0, output=0) == 3_000 * 10**6  # 0.003 dollars
    assert amount_pico(OFF, hit=0, miss=1, output=0) == 150_000
    assert amount_pico(PEAK, hit=1, miss=1, output=1) == 1_506_000


@given(TOKENS, TOKENS, TOKENS)
def test_amounts_are_exact_and_additive(hit: int, miss: int, output: int) -> None:
    whole = amount_pico(OFF, hit, miss, output)
    assert isinstance(whole, int)
    assert whole == amount_pico(OFF, hit, 0, 0) + amount_pico(OFF, 0, miss, 0) + amount_pico(OFF, 0, 0, output)
    assert amount_pico(PEAK, hit, miss, output) == 2 * whole


@given(TOKENS, TOKENS)
def test_a_hit_never_costs_more_than_the_same_token_missed(hit: int, miss: int) -> None:
    assert amount_pico(OFF, hit, miss, 0) <= amount_pico(OFF, 0, hit + miss, 0)


def test_counts_are_not_negative() -> None:
    with pytest.raises(ValueError, match="negative"):
        amount_pico(OFF, 1, -1, 0)
