"""Compare the ledger with its prices, with the sums, and with what workers recorded. Exit status 1 if they differ."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from datetime import UTC, datetime, timedelta

from django.core.management.base import OutputWrapper
from django.utils import timezone

from controlplane.commands import CommandFailure
from controlplane.metering.reconciliation import SHOWN, reconcile


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--start", help="2026-11-29 or 2026-11-29T06:15, in UTC (default: a day before the end)")
    parser.add_argument("--end", help="(default: the last quarter of an hour that is over)")


def run(options: Namespace, out: OutputWrapper) -> None:
    now = timezone.now()
    end = _instant(options.end) if options.end else now - timedelta(minutes=now.minute % 15 + 15)
    end = end.replace(second=0, microsecond=0)
    start = _instant(options.start) if options.start else end - timedelta(days=1)
    try:
        report = reconcile(start=start, end=end)
    except ValueError as error:
        raise CommandFailure(str(error)) from error
    out.write(
        f"{start:%Y-%m-%d %H:%M} to {end:%Y-%m-%d %H:%M} UTC: {report.requests} requests with tokens, "
        f"{report.unrecorded} without a worker's record, {report.gateway_lost} whose gateway died"
    )
    for name, rows in report.faults.items():
        out.write(f"{name}: {len(rows)}")
        for row in rows[:SHOWN]:
            out.write(f"  {row}")
    if report.faults:
        raise CommandFailure("the books do not agree; see above")
    out.write("the books agree")


def _instant(text: str) -> datetime:
    try:
        found = datetime.fromisoformat(text)
    except ValueError as error:
        raise CommandFailure(f"{text} is no time; give it as 2026-11-29T06:15") from error
    return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)
