"""What a form shows of a value is that value when the form comes back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.caching.units import BYTES, SECONDS, exact_duration, exact_size, parse_duration, parse_size


@given(
    st.integers(0, 2**60)
    | st.builds(lambda n, unit: n * unit, st.integers(0, 1000), st.sampled_from([*BYTES.values()]))
)
def test_sizes_come_back_to_the_byte(count: int) -> None:
    assert parse_size(exact_size(count)) == count


@given(
    st.floats(0, 1e12)
    | st.builds(lambda n, unit: float(n * unit), st.integers(0, 10_000), st.sampled_from([*SECONDS.values()]))
)
def test_durations_come_back_to_the_last_bit(seconds: float) -> None:
    assert parse_duration(exact_duration(seconds)) == seconds


@pytest.mark.parametrize(
    ("count", "text"), [(1_500_000_000, "1.5 GB"), (2**40, "1 TiB"), (0, "0 B"), (512 * 2**20, "512 MiB"), (7, "7 B")]
)
def test_sizes_stay_readable(count: int, text: str) -> None:
    assert exact_size(count) == text


def test_durations_stay_readable() -> None:
    assert [exact_duration(s) for s in (3_600_000.0, 259_200.0, 90.0, 1.5)] == ["1000 h", "72 h", "90 s", "1.5 s"]


def test_thousands_may_be_grouped_and_the_boundless_is_refused() -> None:
    assert parse_duration("1,000 h") == 3_600_000.0
    for text in ("9" * 400 + " GiB", "1,00 GiB", "GiB"):
        with pytest.raises(ValueError, match="GiB"):
            parse_size(text)
