"""Set the replicas of one role of a deployment."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from django.core.management.base import OutputWrapper

from controlplane.accounts.permissions import SYSTEM
from controlplane.commands import CommandFailure
from controlplane.fleet import services
from controlplane.fleet.errors import FleetError
from workers.protocol import Role


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("name", help="name of the deployment")
    parser.add_argument("role", choices=[role.value for role in Role])
    parser.add_argument("replicas", type=int)


def run(options: Namespace, out: OutputWrapper) -> None:
    try:
        services.deployment_scale(
            actor=SYSTEM,
            deployment=options.name,
            role=Role(options.role),
            replicas=options.replicas,
            reason="manage.py fleet scale",
        )
    except FleetError as error:
        raise CommandFailure(str(error)) from error
    out.write(f"{options.name} shall have {options.replicas} {options.role} workers.")
