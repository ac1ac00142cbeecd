"""Read every extent: bit rot, files that the index does not know, entries without a file.

Exit status 1 where something is wrong and was not repaired. Traffic goes on meanwhile.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace

from django.core.management.base import OutputWrapper

from controlplane.caching.management.store_verbs._errors import explained
from controlplane.caching.store import opened
from controlplane.caching.units import size
from controlplane.commands import CommandFailure
from workers.kvstore.upkeep import VerifyReport

SHOWN = 20


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--repair", action="store_true", help="remove what is damaged, index what is not indexed")


def run(options: Namespace, out: OutputWrapper) -> None:
    def progress(report: VerifyReport) -> None:
        if sys.stderr.isatty():
            sys.stderr.write(f"\r{report.extents} extents, {size(report.bytes)}")
            sys.stderr.flush()

    with explained(), opened() as store:
        report = store.upkeep.verify(store.maintenance.store_id, repair=options.repair, progress=progress)
    out.write(f"{report.extents} extents, {report.blocks} blocks, {size(report.bytes)} read in {report.seconds:.1f} s")
    for title, found in (("damaged", report.corrupt), ("orphans", report.orphans), ("missing", report.missing)):
        if found:
            more = f" and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
            out.write(f"{title}: {len(found)} ({', '.join(found[:SHOWN])}{more})")
    wrong = len(report.corrupt) + len(report.orphans) + len(report.missing)
    if options.repair:
        out.write(f"repaired: {report.repaired}")
    elif wrong:
        raise CommandFailure(f"{wrong} extents are not as they should be; `manage.py store verify --repair` mends it")
    else:
        out.write("everything is as it should be")
