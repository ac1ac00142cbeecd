from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.telemetry import histograms
from tests.controlplane.telemetry.factories import histogram
from workers.snapshots import LATENCY_BOUNDS_S

SECONDS = st.lists(st.floats(min_value=0, max_value=500), max_size=60)
QUANTILES = st.floats(min_value=0, max_value=1)


def test_linear_within_the_bucket() -> None:
    # Ten observations in (0.1, 0.15]: the median stands in its middle.
    assert histograms.quantile(histogram(*[0.12] * 10).counts, 0.5) == pytest.approx(0.125)
    assert histograms.quantile(histogram(*[0.12] * 10).counts, 1.0) == pytest.approx(0.15)


def test_nothing_has_no_quantile() -> None:
    assert histograms.quantile(histograms.empty(), 0.5) is None


def test_above_the_last_bound_the_bound_stands() -> None:
    assert histograms.quantile(histogram(1000.0).counts, 0.5) == LATENCY_BOUNDS_S[-1]


@given(SECONDS, QUANTILES)
def test_a_quantile_lies_in_the_bucket_of_the_true_one(values: list[float], q: float) -> None:
    estimate = histograms.quantile(histogram(*values).counts, q)
    if not values:
        assert estimate is None
        return
    true = sorted(values)[max(0, -(-int(q * len(values) * 10**9) // 10**9) - 1)]
    upper = next((bound for bound in LATENCY_BOUNDS_S if true <= bound), LATENCY_BOUNDS_S[-1])
    lower = max((bound for bound in LATENCY_BOUNDS_S if bound < true), default=0.0)
    assert estimate is not None
    assert min(lower, LATENCY_BOUNDS_S[-1]) <= estimate <= upper + 1e-12


@given(SECONDS, QUANTILES, QUANTILES)
def test_quantiles_are_in_order(values: list[float], a: float, b: float) -> None:
    counts = histogram(*values).counts
    low, high = histograms.quantile(counts, min(a, b)), histograms.quantile(counts, max(a, b))
    assert (low or 0.0) <= (high or 0.0)


@given(SECONDS, SECONDS)
def test_difference_undoes_merging(a: list[float], b: list[float]) -> None:
    first, second = histogram(*a).counts, histogram(*b).counts
    assert histograms.difference(histograms.merged((first, second)), first) == second


def test_going_backwards_is_an_error() -> None:
    with pytest.raises(ValueError, match="backwards"):
        histograms.difference(histogram().counts, histogram(1.0).counts)
