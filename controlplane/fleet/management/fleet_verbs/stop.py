"""Stop and remove a deployment, or, with --node, everything on a node until it is resumed."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from django.core.management.base import OutputWrapper

from controlplane.accounts.permissions import SYSTEM
from controlplane.commands import CommandFailure
from controlplane.fleet import services
from controlplane.fleet.errors import FleetError

REASON = "manage.py fleet stop"


def add_arguments(parser: ArgumentParser) -> None:
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("name", nargs="?", help="name of a deployment")
    what.add_argument("--node", help="name of a node")


def run(options: Namespace, out: OutputWrapper) -> None:
    try:
        if options.node:
            services.node_stop_all(actor=SYSTEM, node=options.node, reason=REASON)
            out.write(f"Nothing shall run on {options.node} until `manage.py fleet resume {options.node}`.")
        else:
            services.deployment_delete(actor=SYSTEM, deployment=options.name, reason=REASON)
            out.write(f"{options.name} is drained, stopped and removed.")
    except FleetError as error:
        raise CommandFailure(str(error)) from error
