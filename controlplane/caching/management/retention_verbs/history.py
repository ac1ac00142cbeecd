"""List the versions of the policy: who, when, why, and what each changed."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from django.core.management.base import OutputWrapper

from controlplane.caching import selectors


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--limit", type=int, default=20, help="how many (default: 20)")


def run(options: Namespace, out: OutputWrapper) -> None:
    rows = list(selectors.versions()[: max(1, options.limit)])
    changed = selectors.version_changes(rows)
    for row in rows:
        restored = f" (version {row.restores} again)" if row.restores else ""
        out.write(f"{row.number}  {row.created_at:%Y-%m-%d %H:%M:%S} UTC  {row.created_by}{restored}: {row.reason}")
        for change in changed[row.number]:
            out.write(f"    {change.field}: {change.before} -> {change.after}")
