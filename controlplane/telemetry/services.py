"""The only writers of rollups: store, condense 10 s to 5 min, prune in bounded batches."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec

from controlplane.telemetry.models import COARSE_S, FINE_S, Rollup
from controlplane.telemetry.totals import Totals, together

FINE_KEPT: Final = timedelta(days=1)
COARSE_KEPT: Final = timedelta(days=90)
LATE: Final = timedelta(hours=1)
"""Fine rows may come this late (the database was away); periods of that age are condensed again."""
PRUNE_BATCH: Final = 1_000
PRUNE_BATCHES: Final = 100


def period_start(at: datetime, resolution: int) -> datetime:
    """Start of the period that holds `at`: whole multiples of the resolution since 1970, UTC."""
    return datetime.fromtimestamp(int(at.timestamp()) // resolution * resolution, UTC)


def rollup_store(*, resolution: int, at: datetime, writer: int, totals: Totals) -> None:
    """Write one row; writing it again replaces it."""
    row = Rollup(resolution=resolution, at=at, writer=writer, totals=msgspec.to_builtins(totals))
    row.full_clean(validate_unique=False, validate_constraints=False)  # conflicts are what this statement is for
    Rollup.objects.bulk_create(
        [row], update_conflicts=True, unique_fields=["resolution", "at", "writer"], update_fields=["totals"]
    )


def totals_of(rows: Iterable[Rollup]) -> Totals:
    """Sum of rows, whoever wrote them."""
    return together(msgspec.convert(row.totals, Totals) for row in rows)


def rollups_condense(*, now: datetime) -> int:
    """Make the 5 min rows of finished periods that have none, or may have got late parts. Idempotent; their number."""
    end = period_start(now, COARSE_S)
    start = end - FINE_KEPT
    known = set(
        Rollup.objects.filter(resolution=COARSE_S, at__gte=start, at__lt=end - LATE).values_list("at", flat=True)
    )
    periods: dict[datetime, list[Rollup]] = defaultdict(list)
    for row in Rollup.objects.filter(resolution=FINE_S, at__gte=start, at__lt=end).iterator(chunk_size=1_000):
        period = period_start(row.at, COARSE_S)
        if period not in known:
            periods[period].append(row)
    for period, rows in periods.items():
        rollup_store(resolution=COARSE_S, at=period, writer=0, totals=totals_of(rows))
    return len(periods)


def rollups_prune(*, now: datetime) -> int:
    """Delete rows past their time, PRUNE_BATCH at a time, each batch its own short transaction; their number.

    At most PRUNE_BATCHES batches: what is left goes next time.
    """
    deleted = 0
    for resolution, kept in ((FINE_S, FINE_KEPT), (COARSE_S, COARSE_KEPT)):
        expired = Rollup.objects.filter(resolution=resolution, at__lt=now - kept).order_by("at")
        for _ in range(PRUNE_BATCHES):
            batch = list(expired.values_list("pk", flat=True)[:PRUNE_BATCH])
            if not batch:
                break
            deleted += Rollup.objects.filter(pk__in=batch).delete()[0]
    return deleted
