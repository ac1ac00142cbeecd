"""Fill the index from the extents' headers: after it was lost, or to take over a folder of another index."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from django.core.management.base import OutputWrapper

from controlplane.caching.management.store_verbs._errors import explained
from controlplane.caching.store import opened
from controlplane.commands import CommandFailure

LOCK_S = 3600.0


def add_arguments(parser: ArgumentParser) -> None:
    """None."""


def run(options: Namespace, out: OutputWrapper) -> None:
    with explained(), opened() as store:
        store_id = store.root.store_id()
        with store.index.exclusive("rebuild", seconds=LOCK_S) as mine:
            if not mine:
                raise CommandFailure("a rebuild is under way already; wait for it")
            report = store.upkeep.rebuild(store_id)
    out.write(f"{report.extents} extents, {report.blocks} blocks indexed in {report.seconds:.1f} s")
    if report.unreadable or report.refused:
        out.write(f"passed over: {report.unreadable} unreadable (see `store verify`), {report.refused} refused")
