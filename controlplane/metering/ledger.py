"""The only writer of the ledger and its sums: a request gets one row, however often it is told of.

Rows and sums are one statement, so the sums are those of the rows, always.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from django.db import connection, transaction
from django.db.models import Sum

from controlplane.metering.events import UsageEvent, moment
from controlplane.metering.models import UsageBucket
from controlplane.metering.pricing import NoPrice, PicoDollars, Price, PriceTable, amount_pico, price_table

LEDGER_LOCK: Final = 0x6A11E010
"""PostgreSQL advisory lock: one writer at a time, so that sums that are read after a batch are never older ones."""
FREE: Final = Price(hit=0, miss=0, output=0, peak=False, entry_id=0)

_INSERT: Final = """
WITH given AS (
    SELECT * FROM jsonb_to_recordset(%s::jsonb) AS e(
        request_id text, tenant text, caller text, key_id bigint, root_key bigint, model_name text, deployment text,
        gateway text, admitted_at timestamptz, ended_at timestamptz, outcome text, pool_hit_tokens bigint,
        store_hit_tokens bigint, miss_tokens bigint, output_tokens bigint, hit_price bigint, miss_price bigint,
        output_price bigint, peak boolean, price_entry bigint, amount_pico numeric)
), fresh AS (
    INSERT INTO metering_ledgerentry (
        request_id, tenant, caller, key_id, root_key, model_name, deployment, gateway, admitted_at, ended_at, outcome,
        pool_hit_tokens, store_hit_tokens, miss_tokens, output_tokens, hit_price, miss_price, output_price, peak,
        price_entry, amount_pico)
    SELECT request_id, tenant, caller, key_id, root_key, model_name, deployment, gateway, admitted_at, ended_at,
        outcome, pool_hit_tokens, store_hit_tokens, miss_tokens, output_tokens, hit_price, miss_price, output_price,
        peak, price_entry, amount_pico
    FROM given
    ON CONFLICT (request_id) DO NOTHING
    RETURNING *
), summed AS (
    INSERT INTO metering_usagebucket AS sums (
        start, tenant, caller, key_id, root_key, model_name, requests, pool_hit_tokens, store_hit_tokens, miss_tokens,
        output_tokens, amount_pico)
    SELECT date_bin('15 minutes', admitted_at, 'epoch'), tenant, caller, key_id, root_key, model_name, count(*),
        sum(pool_hit_tokens), sum(store_hit_tokens), sum(miss_tokens), sum(output_tokens), sum(amount_pico)
    FROM fresh GROUP BY 1, 2, 3, 4, 5, 6
    ON CONFLICT (start, tenant, caller, key_id, root_key, model_name) DO UPDATE SET
        requests = sums.requests + excluded.requests,
        pool_hit_tokens = sums.pool_hit_tokens + excluded.pool_hit_tokens,
        store_hit_tokens = sums.store_hit_tokens + excluded.store_hit_tokens,
        miss_tokens = sums.miss_tokens + excluded.miss_tokens,
        output_tokens = sums.output_tokens + excluded.output_tokens,
        amount_pico = sums.amount_pico + excluded.amount_pico
)
SELECT request_id FROM fresh
"""


@dataclass(frozen=True, slots=True)
class Priced:
    price: Price
    amount: PicoDollars


def priced(event: UsageEvent, table: PriceTable) -> Priced:
    """At the instant of admission; a model that the book does not know costs nothing."""
    counts = event.counts
    try:
        price = table.price_at(event.intent.model, event.admitted_at)
    except NoPrice:
        price = FREE
    return Priced(price, amount_pico(price, counts.pool_hit + counts.store_hit, counts.miss, counts.output))


def usage_record(events: Sequence[UsageEvent], *, table: PriceTable | None = None) -> list[str]:
    """Insert what the ledger does not have yet; the request ids of those. Holds LEDGER_LOCK until the commit."""
    if not events:
        return []
    table = table if table is not None else price_table()
    rows = [_row(event, priced(event, table)) for event in events]
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(%s)", [LEDGER_LOCK])
        cursor.execute(_INSERT, [json.dumps(rows)])
        return [row[0] for row in cursor.fetchall()]


def _row(event: UsageEvent, found: Priced) -> dict[str, Any]:
    intent, counts, price = event.intent, event.counts, found.price
    return {
        "request_id": event.request_id,
        "tenant": intent.tenant,
        "caller": intent.caller,
        "key_id": intent.key_id,
        "root_key": intent.root_key,
        "model_name": intent.model,
        "deployment": intent.deployment,
        "gateway": intent.gateway,
        "admitted_at": event.admitted_at.isoformat(),
        "ended_at": moment(event.final.ended_us).isoformat(),
        "outcome": event.final.outcome,
        "pool_hit_tokens": counts.pool_hit,
        "store_hit_tokens": counts.store_hit,
        "miss_tokens": counts.miss,
        "output_tokens": counts.output,
        "hit_price": price.hit,
        "miss_price": price.miss,
        "output_price": price.output,
        "peak": price.peak,
        "price_entry": price.entry_id or None,
        "amount_pico": found.amount,
    }


def spent_pico(*, subject: str, start: datetime, end: datetime) -> int:
    """What a subject of limits (`t:<tenant>`, `k:<root key>`) has in the ledger of [start, end), admitted then."""
    kind, _, name = subject.partition(":")
    whose = {"tenant": name} if kind == "t" else {"root_key": int(name)}
    rows = UsageBucket.objects.filter(start__gte=start, start__lt=end, **whose)
    return int(rows.aggregate(total=Sum("amount_pico"))["total"] or 0)
