"""Confirm that the workers that an eviction freeze holds are really lost, so that they are replaced."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from django.core.management.base import OutputWrapper

from controlplane.accounts.permissions import SYSTEM
from controlplane.commands import CommandFailure
from controlplane.fleet import selectors, services


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("reason", help="how you know, for the audit log")


def run(options: Namespace, out: OutputWrapper) -> None:
    if selectors.eviction_freeze() is None:
        raise CommandFailure("nothing is frozen")
    services.eviction_freeze_confirm(actor=SYSTEM, reason=options.reason)
    out.write("Confirmed; the lost workers are given up at the next reconciliation.")
