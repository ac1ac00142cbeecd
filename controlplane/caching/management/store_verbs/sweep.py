"""Free what expired or is over a budget, now rather than within seconds."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from django.core.management.base import OutputWrapper

from controlplane.caching.management.store_verbs._errors import explained
from controlplane.caching.publication import publish_current
from controlplane.caching.store import opened
from controlplane.caching.units import size


def add_arguments(parser: ArgumentParser) -> None:
    """None."""


def run(options: Namespace, out: OutputWrapper) -> None:
    publish_current()
    with explained(), opened() as store:
        report = store.sweep()
    if report is None:
        out.write("another process is sweeping; nothing to do here")
        return
    out.write(
        f"{report.expired_blocks} blocks expired ({size(report.expired_bytes)}), {report.evicted_blocks} evicted "
        f"({size(report.evicted_bytes)}), {report.files_removed} files removed in {report.seconds:.1f} s"
    )
    for budget in report.over_budget:
        out.write(f"over budget: {budget}")
