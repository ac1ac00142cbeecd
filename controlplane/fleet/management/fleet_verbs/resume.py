"""Let a node run again what is wanted on it."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from django.core.management.base import OutputWrapper

from controlplane.accounts.permissions import SYSTEM
from controlplane.commands import CommandFailure
from controlplane.fleet import services
from controlplane.fleet.errors import FleetError


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("node", help="name of the node")


def run(options: Namespace, out: OutputWrapper) -> None:
    try:
        services.node_resume(actor=SYSTEM, node=options.node, reason="manage.py fleet resume")
    except FleetError as error:
        raise CommandFailure(str(error)) from error
    out.write(f"{options.node} runs again what is wanted on it.")
