"""Reads of what was used: sums by hour or day of the reader's time zone, by tenant, key and model."""

from __future__ import annotations

import enum
from collections.abc import Collection
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from django.db.models import DateTimeField, F, Func, Q, QuerySet, Sum, Value

from controlplane.metering.models import LedgerEntry, UsageBucket
from controlplane.metering.pricing import PICO_PER_DOLLAR

TOKEN_CLASSES: Final = ("pool_hit_tokens", "store_hit_tokens", "miss_tokens", "output_tokens")
SUMS: Final = ("requests", *TOKEN_CLASSES, "amount_pico")
LONGEST: Final = timedelta(days=400)
QUARTER: Final = timedelta(minutes=15)
"""What the sums are kept by: every zone's hours are made of such quarters."""


class Grouping(enum.StrEnum):
    TENANT = "tenant"
    KEY = "key"
    MODEL = "model"


class Step(enum.StrEnum):
    HOUR = "hour"
    DAY = "day"


_COLUMNS: Final = {
    Grouping.TENANT: ("tenant",),
    Grouping.KEY: ("tenant", "caller", "key_id"),
    Grouping.MODEL: ("model_name",),
}


class BadUsageQuery(ValueError):
    """The question makes no sense; the message names the parameter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageQuery:
    """[start, end) by the instant of admission. `tenants` None: all that there are or were."""

    start: datetime
    end: datetime
    zone: ZoneInfo
    tenants: Collection[str] | None = None
    key_id: int | None = None
    model: str | None = None

    def __post_init__(self) -> None:
        if self.end <= self.start:
            raise BadUsageQuery("end: it is not after start")
        if self.end - self.start > LONGEST:
            raise BadUsageQuery(f"end: at most {LONGEST.days} days after start")

    def aligned(self) -> UsageQuery:
        """Over whole quarters of an hour, so that sums and rows are of exactly what the bounds say.

        Raises BadUsageQuery at the end of time.
        """
        try:
            return replace(self, start=self.start - _into(self.start), end=self.end + _into(self.end, QUARTER))
        except OverflowError as error:
            raise BadUsageQuery("end: it is out of all bounds") from error


@dataclass(frozen=True, slots=True)
class Usage:
    """Sums of one group in one step; the classes are disjoint."""

    requests: int = 0
    pool_hit_tokens: int = 0
    store_hit_tokens: int = 0
    miss_tokens: int = 0
    output_tokens: int = 0
    amount_pico: int = 0

    @property
    def prompt_tokens(self) -> int:
        return self.pool_hit_tokens + self.store_hit_tokens + self.miss_tokens

    @property
    def hit_tokens(self) -> int:
        return self.pool_hit_tokens + self.store_hit_tokens

    @property
    def amount_usd(self) -> Decimal:
        """Exact."""
        return usd(self.amount_pico)


@dataclass(frozen=True, slots=True)
class UsageRow:
    """`at` is the first instant of the step in the query's zone, None where steps were not asked for."""

    at: datetime | None
    group: dict[str, Any]
    usage: Usage

    @property
    def local(self) -> str:
        """The hour as the zone's clocks show it, with the offset: one hour of autumn comes twice."""
        return f"{self.at:%Y-%m-%d %H:%M %z}" if self.at is not None else ""

    @property
    def local_day(self) -> str:
        return f"{self.at:%Y-%m-%d}" if self.at is not None else ""


def _into(instant: datetime, whole: timedelta = timedelta(0)) -> timedelta:
    """Time since the quarter began; with `whole`, what is left of a quarter that has begun."""
    since = (instant - datetime(2000, 1, 1, tzinfo=UTC)) % QUARTER
    return since if not whole else (whole - since) % whole


def usd(pico: int) -> Decimal:
    return Decimal(pico) / PICO_PER_DOLLAR


def zone_named(name: str) -> ZoneInfo:
    """Raises BadUsageQuery for what is no IANA zone."""
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise BadUsageQuery(f"zone: {name[:64]!r} is no time zone; give one such as Europe/Berlin") from error


def day_start(day: date, zone: ZoneInfo) -> datetime:
    return datetime.combine(day, time(), zone)


def usage_total(query: UsageQuery) -> Usage:
    found = _buckets(query).aggregate(**{name: Sum(name) for name in SUMS})
    return _usage(found)


def usage_rows(query: UsageQuery, *, step: Step | None = None, by: Grouping | None = None) -> list[UsageRow]:
    """In order of time; without steps the dearest first. Groups and steps without usage have no row."""
    rows = _buckets(query)
    columns = _COLUMNS[by] if by is not None else ()
    if step is not None:
        at = Func(
            Value(step.value), F("start"), Value(query.zone.key), function="date_trunc", output_field=DateTimeField()
        )
        rows = rows.annotate(at=at)
    names = (*(("at",) if step is not None else ()), *columns)
    sums = {f"sum_{name}": Sum(name) for name in SUMS}
    ordered = ("at", *columns) if step is not None else ("-sum_amount_pico", "-sum_requests", *columns)
    found = rows.order_by().values(*names).annotate(**sums).order_by(*ordered)
    return [
        UsageRow(
            at=row["at"].astimezone(query.zone) if step is not None else None,
            group={name: row[name] for name in columns},
            usage=_usage({name: row[f"sum_{name}"] for name in SUMS}),
        )
        for row in found
    ]


def ledger_page(query: UsageQuery, *, before: LedgerEntry | None, size: int) -> list[LedgerEntry]:
    """Rows of the ledger, last admitted first, from the row before `before` on."""
    rows = LedgerEntry.objects.filter(admitted_at__gte=query.start, admitted_at__lt=query.end)
    rows = _narrowed(rows, query)
    if before is not None:
        at = before.admitted_at
        rows = rows.filter(Q(admitted_at__lt=at) | Q(admitted_at=at, pk__lt=before.pk), admitted_at__lte=at)
    return list(rows.order_by("-admitted_at", "-pk")[:size])


def known_models(query: UsageQuery) -> list[str]:
    """Models that were used in that time."""
    return list(_buckets(query).order_by("model_name").values_list("model_name", flat=True).distinct())


def _buckets(query: UsageQuery) -> QuerySet[UsageBucket]:
    return _narrowed(UsageBucket.objects.filter(start__gte=query.start, start__lt=query.end), query)


def _narrowed(rows: QuerySet[Any], query: UsageQuery) -> QuerySet[Any]:
    if query.tenants is not None:
        rows = rows.filter(tenant__in=query.tenants)
    if query.key_id is not None:
        rows = rows.filter(key_id=query.key_id)
    if query.model is not None:
        rows = rows.filter(model_name=query.model)
    return rows


def _usage(sums: dict[str, Any]) -> Usage:
    return Usage(**{name: int(sums[name] or 0) for name in SUMS})
