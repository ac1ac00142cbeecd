"""What the ledger has of each budget, told to Valkey: after each batch, and where Valkey does not know it."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

import redis

from controlplane.accounts.selectors import limited_subjects
from controlplane.metering.events import UsageEvent
from controlplane.metering.ledger import spent_pico
from controlplane.metering.limit_scripts import LEDGERED, MONEY_TTL_S, money_key, month_of, nano_of_pico

log = logging.getLogger(__name__)


def month_bounds(month: str) -> tuple[datetime, datetime]:
    """First instant of the month (`yyyymm`, UTC) and of the next."""
    start = datetime(int(month[:4]), int(month[4:]), 1, tzinfo=UTC)
    end = start.replace(year=start.year + start.month // 12, month=start.month % 12 + 1)
    return start, end


def ledgered(client: redis.Redis, events: Sequence[UsageEvent]) -> None:
    """The ledger has these: what they reserved of budgets is now part of what is spent. Raises redis.RedisError."""
    found: dict[tuple[str, str], list[str]] = defaultdict(list)
    for event in events:
        for subject in event.intent.subjects:
            if subject.budgeted:
                found[subject.name, month_of(event.admitted_at)].append(event.request_id)
    for (name, month), request_ids in found.items():
        _tell(client, name, month, request_ids)


def budgets_seed(client: redis.Redis, *, now: datetime) -> int:
    """Tell Valkey of budgets it does not know in this month and the next; how many. Raises redis.RedisError."""
    this = month_of(now)
    months = (this, month_of(month_bounds(this)[1]))
    unknown = [
        (subject, month)
        for subject in budgeted_subjects()
        for month in months
        if not client.hexists(money_key(subject, month), "spent")
    ]
    for subject, month in unknown:
        _tell(client, subject, month, ())
    return len(unknown)


def budget_told(client: redis.Redis, subject: str) -> None:
    """A budget was set: tell at once what is spent, which Valkey may never have heard or heard long ago.

    Where Valkey is away, `budgets_seed` tells it later; nothing is spent before.
    """
    try:
        _tell(client, subject, month_of(datetime.now(UTC)), ())
    except redis.RedisError as error:
        log.warning("what %s has spent could not be told (%s)", subject, error)


def budgeted_subjects() -> list[str]:
    tenants, keys = limited_subjects()
    return [*(f"t:{tenant.slug}" for tenant in tenants), *{f"k:{key.root_key_id}": None for key in keys}]


def _tell(client: redis.Redis, subject: str, month: str, request_ids: Iterable[str]) -> None:
    start, end = month_bounds(month)
    spent = nano_of_pico(spent_pico(subject=subject, start=start, end=end))
    client.eval(LEDGERED, 1, money_key(subject, month), spent, MONEY_TTL_S, *request_ids)
