from __future__ import annotations

import json

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from controlplane.telemetry.frames import Percentiles
from controlplane.telemetry.totals import (
    MAX_REASONS,
    OTHER,
    Totals,
    history_frame,
    hit_rate,
    percentiles,
    summed,
    together,
    usd_per_hour,
)
from tests.controlplane.telemetry.factories import histogram

COUNTS = st.integers(min_value=0, max_value=10**9)
TOTALS = st.builds(
    Totals,
    hit=COUNTS,
    miss=COUNTS,
    output=COUNTS,
    ended=st.dictionaries(st.sampled_from(["stop", "length", "internal"]), COUNTS),
    cost_pico=COUNTS,
    revenue_pico=COUNTS,
)


@given(st.lists(TOTALS, max_size=6))
def test_no_token_and_no_request_is_lost_in_a_sum(periods: list[Totals]) -> None:
    whole = together(periods)
    assert whole.hit == sum(period.hit for period in periods)
    assert whole.output == sum(period.output for period in periods)
    assert whole.requests == sum(period.requests for period in periods)
    assert whole.revenue_pico == sum(period.revenue_pico for period in periods)


@given(TOTALS)
def test_through_json_and_back_nothing_changes(totals: Totals) -> None:
    assert msgspec.convert(json.loads(json.dumps(msgspec.to_builtins(totals))), Totals) == totals


def test_reasons_are_bounded_and_still_add_up() -> None:
    many = {f"code-{number}": 1 for number in range(3 * MAX_REASONS)}
    total = summed({}, many)
    assert len(total) == MAX_REASONS + 1
    assert sum(total.values()) == 3 * MAX_REASONS
    assert total[OTHER] == 2 * MAX_REASONS


def test_errors_are_what_did_not_end_well() -> None:
    assert Totals(ended={"stop": 3, "length": 1, "cancelled": 1, "peer_lost": 2}).errors == 2


def test_hit_rate_of_nothing_is_unknown() -> None:
    assert hit_rate(Totals()) is None
    assert hit_rate(Totals(hit=0, miss=5)) == 0.0
    assert hit_rate(Totals(hit=3, miss=1)) == 0.75


def test_percentiles_in_milliseconds() -> None:
    assert percentiles(histogram().counts) == Percentiles()
    assert percentiles(histogram(*[0.12] * 10).counts).p50 == 125.0


def test_dollars_per_hour() -> None:
    assert usd_per_hour(10**12, 3600) == "1.000000"
    assert usd_per_hour(10**12, 1) == "3600.000000"
    assert usd_per_hour(5, 0) == "0"


def test_history_has_rates_over_what_was_observed() -> None:
    frame = history_frame(Totals(seconds=5, hit=50, output=10, running_s=20, ended={"stop": 5}), at=100, resolution=10)
    assert (frame.tokens_per_s.hit, frame.tokens_per_s.output) == (10, 2)
    assert (frame.running, frame.requests_per_s, frame.window_s, frame.seq) == (4, 1, 10, 0)
