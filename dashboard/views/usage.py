"""Usage: sums by hour or day of the reader's time zone, by tenant, key and model; the same as CSV."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from urllib.parse import unquote, urlencode

from django import forms
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import render
from django.utils import timezone
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from controlplane.accounts.permissions import Action, can
from controlplane.accounts.selectors import tenants
from controlplane.metering.access import visible_tenants
from controlplane.metering.api import csv_response
from controlplane.metering.usage import (
    BadUsageQuery,
    Grouping,
    Step,
    Usage,
    UsageQuery,
    UsageRow,
    known_models,
    usage_rows,
    usage_total,
    zone_named,
)
from dashboard.access import principal_of, sign_in_required, wants_partial

ZONE_COOKIE: Final = "galley_zone"
"""Set by the pages' script: the zone of the browser."""
SPANS: Final = (("24h", "Last 24 hours"), ("7d", "Last 7 days"), ("30d", "Last 30 days"), ("month", "This month"))
_LENGTHS: Final = {"24h": timedelta(hours=24), "7d": timedelta(days=7), "30d": timedelta(days=30)}
CLASSES: Final = (
    ("pool_hit_tokens", "Hit, pool"),
    ("store_hit_tokens", "Hit, store"),
    ("miss_tokens", "Miss"),
    ("output_tokens", "Output"),
)
TOP: Final = 50
"""Rows of a table; the CSV has all."""


class UsageForm(forms.Form):
    span = forms.ChoiceField(choices=SPANS, required=False)
    zone = forms.CharField(max_length=64, required=False)
    tenant = forms.CharField(max_length=63, required=False)
    model = forms.CharField(max_length=200, required=False)
    detail = forms.ChoiceField(choices=[("hours", ""), ("requests", "")], required=False)


@dataclass(frozen=True, slots=True)
class Segment:
    """One class of one bar, in percent of the chart's height."""

    name: str
    y: float
    height: float


@dataclass(frozen=True, slots=True)
class Bar:
    """One step. `x` and `width` are percent of the chart's width."""

    label: str
    title: str
    x: float
    width: float
    segments: list[Segment]


@require_safe
@never_cache
@sign_in_required
def show(request: HttpRequest) -> HttpResponse:
    form = UsageForm(request.GET)
    asked = form.cleaned_data if form.is_valid() else {}
    problem = ""
    try:
        query = _query(request, asked)
    except BadUsageQuery as error:
        problem, asked = str(error).partition(": ")[2], {**asked, "zone": "UTC"}
        query = _query(request, asked)
    step = Step.HOUR if query.end - query.start <= timedelta(days=3) else Step.DAY
    rows = usage_rows(query, step=step)
    context: dict[str, Any] = {
        "total": usage_total(query),
        "bars": bars(rows, query, step),
        "rows": list(reversed(rows)),
        "groups": [
            (title, column, usage_rows(query, by=by)[:TOP])
            for title, column, by in (
                ("By tenant", "tenant", Grouping.TENANT),
                ("By key", "caller", Grouping.KEY),
                ("By model", "model_name", Grouping.MODEL),
            )
        ],
        "classes": CLASSES,
        "step": step.value,
        "zone": query.zone.key,
        "query": query,
        "problem": problem,
        "span": asked.get("span") or "24h",
        "spans": SPANS,
        "tenant": asked.get("tenant", ""),
        "tenants": visible_tenants(principal_of(request)) or [one.slug for one in tenants()],
        "model": asked.get("model", ""),
        "models": known_models(query),
        "export": urlencode({name: value for name, value in asked.items() if value and name != "detail"}),
        "sees_prices": can(principal_of(request), Action.PRICES_MANAGE),
    }
    template = "dashboard/partials/usage_body.html" if wants_partial(request) else "dashboard/usage.html"
    return render(request, template, context)


@require_safe
@never_cache
@sign_in_required
def export(request: HttpRequest) -> HttpResponseBase:
    form = UsageForm(request.GET)
    asked = form.cleaned_data if form.is_valid() else {}
    try:
        query = _query(request, asked)
    except BadUsageQuery as error:
        return HttpResponse(str(error), status=400, content_type="text/plain; charset=utf-8")
    return csv_response(query, detail=asked.get("detail") or "hours")


def _query(request: HttpRequest, asked: dict[str, Any]) -> UsageQuery:
    """Raises BadUsageQuery; PermissionDenied where the viewer sees nobody's costs."""
    seen = visible_tenants(principal_of(request))
    tenant = asked.get("tenant")
    if seen == [] or (tenant and seen is not None and tenant not in seen):
        raise PermissionDenied(Action.COSTS_VIEW.value)
    zone = zone_named(asked.get("zone") or _zone_of_browser(request))
    end = timezone.now()
    span = asked.get("span") or "24h"
    if span == "month":
        start = end.astimezone(zone).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    else:
        start = (end - _LENGTHS[span]).astimezone(zone).replace(minute=0, second=0, microsecond=0)
        if span != "24h":
            start = start.replace(hour=0)
    return UsageQuery(
        start=start.astimezone(UTC),
        end=end,
        zone=zone,
        tenants=[tenant] if tenant else seen,
        model=asked.get("model") or None,
    )


def _zone_of_browser(request: HttpRequest) -> str:
    """What its script said; UTC for what is no zone."""
    name = unquote(request.COOKIES.get(ZONE_COOKIE, ""))
    try:
        return zone_named(name).key if name else "UTC"
    except BadUsageQuery:
        return "UTC"


def bars(rows: list[UsageRow], query: UsageQuery, step: Step) -> list[Bar]:
    """A place for each step of the query, those without usage empty; heights are shares of the largest."""
    # By the instant: two hours of autumn are equal as their zone has them.
    by_start = {row.at.astimezone(UTC): row.usage for row in rows if row.at is not None}
    starts = _starts(query, step)
    most = max((_tokens(usage) for usage in by_start.values()), default=0) or 1
    width = 100 / len(starts)
    made = []
    for index, start in enumerate(starts):
        usage = by_start.get(start.astimezone(UTC), Usage())
        segments, top = [], 100.0
        for name, _ in CLASSES:
            height = 100 * getattr(usage, name) / most
            top -= height
            if height:
                segments.append(Segment(name, round(top, 3), round(height, 3)))
        label = f"{start:%H:%M}" if step is Step.HOUR else f"{start:%d %b}"
        title = f"{start:%d %b %H:%M}: {_tokens(usage):,} tokens, {usage.requests:,} requests, ${usage.amount_usd:.6f}"
        made.append(Bar(label, title, round(index * width, 4), round(width * 0.8, 4), segments))
    return made


def _starts(query: UsageQuery, step: Step) -> list[datetime]:
    """First instants of the steps, in the zone: hours go by in UTC, days by the zone's calendar."""
    found = []
    at = query.start.astimezone(query.zone)
    while at < query.end:
        found.append(at)
        if step is Step.HOUR:
            at = (at.astimezone(UTC) + timedelta(hours=1)).astimezone(query.zone)
        else:
            at = at + timedelta(days=1)
    return found


def _tokens(usage: Usage) -> int:
    return usage.prompt_tokens + usage.output_tokens
