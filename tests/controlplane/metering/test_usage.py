"""Bounds of questions about usage; the rest is asked of the API and the pages."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from controlplane.metering.usage import BadUsageQuery, UsageQuery

DAY = datetime(2026, 11, 29, tzinfo=UTC)


def query(start: datetime, end: datetime) -> UsageQuery:
    return UsageQuery(start=start, end=end, zone=ZoneInfo("Asia/Kathmandu"))


def test_bounds_are_whole_quarters_as_the_sums_are() -> None:
    asked = query(DAY + timedelta(minutes=7), DAY + timedelta(minutes=31)).aligned()
    assert (asked.start, asked.end) == (DAY, DAY + timedelta(minutes=45))
    assert asked.aligned() == asked
    with pytest.raises(BadUsageQuery, match="end"):
        query(datetime(9999, 12, 31, 23, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, tzinfo=UTC)).aligned()
