"""Remove a pin; its prefix ages like everything else from now on."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from django.core.management.base import OutputWrapper

from controlplane.accounts.permissions import SYSTEM
from controlplane.caching import services
from controlplane.caching.management.store_verbs._errors import explained


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("name")
    parser.add_argument("--reason", default="manage.py retention unpin")


def run(options: Namespace, out: OutputWrapper) -> None:
    with explained():
        row = services.pin_remove(actor=SYSTEM, name=options.name, reason=options.reason)
    out.write(f"{options.name} is not pinned any more (version {row.number})")
