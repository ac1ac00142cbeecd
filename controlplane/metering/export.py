"""Usage as CSV, a piece at a time: neither the server nor the database holds a whole export."""

from __future__ import annotations

import csv
import io
from collections.abc import AsyncIterator, Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from asgiref.sync import sync_to_async

from controlplane.database import release_connections
from controlplane.metering.models import LedgerEntry
from controlplane.metering.usage import Grouping, Step, UsageQuery, UsageRow, ledger_page, usage_rows, usd

PAGE: Final = 2000
HOURS_HEAD: Final = (
    "hour", "zone", "tenant", "key", "requests", "pool_hit_tokens", "store_hit_tokens", "miss_tokens",
    "output_tokens", "amount_pico_usd", "amount_usd",
)  # fmt: skip
REQUESTS_HEAD: Final = (
    "request_id", "admitted_at", "ended_at", "tenant", "key", "model", "outcome", "pool_hit_tokens",
    "store_hit_tokens", "miss_tokens", "output_tokens", "hit_price", "miss_price", "output_price", "peak",
    "amount_pico_usd", "amount_usd",
)  # fmt: skip
_RISKY: Final = ("=", "+", "-", "@", "\t", "\r")


async def hours_csv(query: UsageQuery) -> AsyncIterator[bytes]:
    """A row for each hour, tenant and key, day by day."""
    yield _lines([HOURS_HEAD])
    start = query.start
    while start < query.end:
        # One day of the zone at a time, whatever the clocks do on it.
        midnight = (start.astimezone(query.zone) + timedelta(days=1)).replace(hour=0, minute=0, second=0, microsecond=0)
        end = min(midnight.astimezone(UTC), query.end)
        rows = await sync_to_async(_hours)(replace(query, start=start, end=end))
        if rows:
            yield _lines(_hour_row(row, query.zone.key) for row in rows)
        start = end


async def requests_csv(query: UsageQuery) -> AsyncIterator[bytes]:
    """A row for each request, newest first."""
    yield _lines([REQUESTS_HEAD])
    before: LedgerEntry | None = None
    while page := await sync_to_async(_page)(query, before):
        yield _lines(_request_row(row) for row in page)
        before = page[-1]


def _hours(query: UsageQuery) -> list[UsageRow]:
    try:
        return usage_rows(query, step=Step.HOUR, by=Grouping.KEY)
    finally:
        release_connections()


def _page(query: UsageQuery, before: LedgerEntry | None) -> list[LedgerEntry]:
    try:
        return ledger_page(query, before=before, size=PAGE)
    finally:
        release_connections()


def _hour_row(row: UsageRow, zone: str) -> Iterable[Any]:
    usage = row.usage
    assert row.at is not None
    return (
        row.at.isoformat(), zone, row.group["tenant"], row.group["caller"], usage.requests, usage.pool_hit_tokens,
        usage.store_hit_tokens, usage.miss_tokens, usage.output_tokens, usage.amount_pico, f"{usage.amount_usd:f}",
    )  # fmt: skip


def _request_row(row: LedgerEntry) -> Iterable[Any]:
    return (
        row.request_id, _utc(row.admitted_at), _utc(row.ended_at), row.tenant, row.caller, row.model_name,
        row.outcome, row.pool_hit_tokens, row.store_hit_tokens, row.miss_tokens, row.output_tokens, row.hit_price,
        row.miss_price, row.output_price, "peak" if row.peak else "", int(row.amount_pico),
        f"{usd(int(row.amount_pico)):f}",
    )  # fmt: skip


def _utc(instant: datetime) -> str:
    return instant.astimezone(UTC).isoformat()


def _lines(rows: Iterable[Iterable[Any]]) -> bytes:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\r\n")
    writer.writerows([_safe(value) for value in row] for row in rows)
    return text.getvalue().encode()


def _safe(value: Any) -> Any:
    """A name that a spreadsheet would take for a formula is quoted."""
    return f"'{value}" if isinstance(value, str) and value.startswith(_RISKY) else value
