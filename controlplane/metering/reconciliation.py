"""Whether the books agree: the ledger's rows with their prices, the sums with the rows, the workers with both."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from django.db import connection

from controlplane.metering.events import GATEWAY_LOST

SHOWN: Final = 20

_PRICES: Final = """
SELECT request_id FROM metering_ledgerentry
WHERE admitted_at >= %(start)s AND admitted_at < %(end)s
  AND amount_pico <> (pool_hit_tokens + store_hit_tokens)::numeric * hit_price + miss_tokens::numeric * miss_price
      + output_tokens::numeric * output_price
"""
_SUMS: Final = """
WITH rows AS (
    SELECT date_bin('15 minutes', admitted_at, 'epoch') AS start, tenant, caller, key_id, root_key, model_name,
        count(*) AS requests, sum(pool_hit_tokens) AS pool, sum(store_hit_tokens) AS store, sum(miss_tokens) AS miss,
        sum(output_tokens) AS output, sum(amount_pico) AS amount
    FROM metering_ledgerentry WHERE admitted_at >= %(start)s AND admitted_at < %(end)s
    GROUP BY 1, 2, 3, 4, 5, 6
), sums AS (
    SELECT start, tenant, caller, key_id, root_key, model_name, requests, pool_hit_tokens AS pool,
        store_hit_tokens AS store, miss_tokens AS miss, output_tokens AS output, amount_pico AS amount
    FROM metering_usagebucket WHERE start >= %(start)s AND start < %(end)s
)
SELECT start::text || ' ' || tenant || ' ' || caller || ' ' || model_name
FROM rows FULL JOIN sums USING (start, tenant, caller, key_id, root_key, model_name)
WHERE (rows.requests, rows.pool, rows.store, rows.miss, rows.output, rows.amount)
    IS DISTINCT FROM (sums.requests, sums.pool, sums.store, sums.miss, sums.output, sums.amount)
"""
_WORKERS: Final = """
WITH said AS (
    -- What came of an attempt that was given up was thrown away: retried requests may be billed less.
    SELECT request_id, sum(pool_hit_tokens + store_hit_tokens) AS hit, sum(miss_tokens) AS miss,
        sum(output_tokens) AS output, bool_or(attempt_id LIKE '%%.retry%%') AS retried
    FROM metering_workerrecord GROUP BY request_id
)
SELECT row.request_id, row.outcome, said.request_id IS NULL AS unrecorded,
    row.output_tokens > said.output AS more_out,
    row.pool_hit_tokens + row.store_hit_tokens + row.miss_tokens > said.hit + said.miss AS more_in,
    NOT said.retried AND row.outcome = ANY(%(whole)s) AND row.output_tokens < said.output AS less_out
FROM metering_ledgerentry AS row LEFT JOIN said USING (request_id)
WHERE row.admitted_at >= %(start)s AND row.admitted_at < %(end)s
  AND row.pool_hit_tokens + row.store_hit_tokens + row.miss_tokens + row.output_tokens > 0
"""
_ORPHANS: Final = """
SELECT DISTINCT said.request_id FROM metering_workerrecord AS said
LEFT JOIN metering_ledgerentry AS row USING (request_id)
WHERE row.request_id IS NULL AND said.ended_at >= %(start)s AND said.ended_at < %(end)s
  AND said.request_id LIKE 'req\\_%%'
"""
WHOLE: Final = ["length", "tool_calls"]
"""Ends at which everything the workers made was sent: a stop string may cut the last token's successors off."""


@dataclass(slots=True)
class Report:
    """Request ids, or sums by name, for each way in which the books could disagree; `faults` must be empty."""

    requests: int = 0
    wrong_amounts: list[str] = field(default_factory=list)
    wrong_sums: list[str] = field(default_factory=list)
    billed_more: list[str] = field(default_factory=list)
    """More tokens than the workers say they made."""
    billed_less: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    """Workers ran it, the ledger does not have it."""
    unrecorded: int = 0
    """In the ledger, with no worker's record: lost with Valkey's memory, or older than records are kept."""
    gateway_lost: int = 0

    @property
    def faults(self) -> dict[str, list[str]]:
        found = {
            "amounts that are not tokens times price": self.wrong_amounts,
            "sums that are not those of the rows": self.wrong_sums,
            "billed more than workers made": self.billed_more,
            "billed less than was sent": self.billed_less,
            "missing in the ledger": self.missing,
        }
        return {name: rows for name, rows in found.items() if rows}


def reconcile(*, start: datetime, end: datetime) -> Report:
    """Compare [start, end), both on a quarter of an hour. Raises ValueError for other bounds."""
    if any(bound.minute % 15 or bound.second or bound.microsecond for bound in (start, end)):
        raise ValueError("the bounds are quarters of an hour: sums have no finer grain")
    bounds: dict[str, Any] = {"start": start, "end": end, "whole": WHOLE}
    report = Report()
    with connection.cursor() as cursor:
        report.wrong_amounts = _column(cursor, _PRICES, bounds)
        report.wrong_sums = _column(cursor, _SUMS, bounds)
        report.missing = _column(cursor, _ORPHANS, bounds)
        cursor.execute(_WORKERS, bounds)
        for request_id, outcome, unrecorded, more_out, more_in, less_out in cursor.fetchall():
            report.requests += 1
            report.unrecorded += bool(unrecorded)
            report.gateway_lost += outcome == GATEWAY_LOST
            if more_out or more_in:
                report.billed_more.append(request_id)
            if less_out:
                report.billed_less.append(request_id)
    return report


def _column(cursor: Any, query: str, bounds: dict[str, Any]) -> list[str]:
    cursor.execute(query, bounds)
    return [row[0] for row in cursor.fetchall()]
