"""Remove everything of a tenant, a model or a class from store and pools. It cannot be undone."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from django.core.management.base import OutputWrapper

from controlplane.accounts.permissions import SYSTEM
from controlplane.caching import services
from controlplane.caching.management.store_verbs._errors import explained
from controlplane.caching.purging import Scope
from controlplane.commands import CommandFailure


def add_arguments(parser: ArgumentParser) -> None:
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--tenant", metavar="SLUG")
    what.add_argument("--model", metavar="NAME", help="a model's name, or (the beginning of) a fingerprint")
    what.add_argument("--class", dest="retention_class", metavar="NAME")
    parser.add_argument("--reason", default="manage.py store purge", help="for the audit log")
    parser.add_argument("--yes", action="store_true", help="do not ask")


def run(options: Namespace, out: OutputWrapper) -> None:
    named = {"tenant": options.tenant, "model": options.model, "class": options.retention_class}
    scope = next(Scope(kind, name) for kind, name in named.items() if name is not None)
    if not options.yes and input(f"Remove everything of {scope}? Type its name: ") != scope.name:
        raise CommandFailure("nothing was removed")
    with explained():
        report = services.purge(actor=SYSTEM, scope=scope, reason=options.reason)
    out.write(f"{scope}: {report.extents} extents removed, {report.unindexed} files that no index knew")
