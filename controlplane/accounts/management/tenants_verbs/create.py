"""Create a tenant."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from django.core.exceptions import ValidationError
from django.core.management.base import OutputWrapper

from controlplane.accounts import services
from controlplane.accounts.limit_options import add_limit_arguments, describe, given_limits
from controlplane.accounts.limits import Limits
from controlplane.accounts.permissions import SYSTEM
from controlplane.commands import CommandFailure


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("slug", help="short name: letters, digits, `-` and `_`")
    parser.add_argument("--name", help="as people read it (default: the slug)")
    add_limit_arguments(parser)


def run(options: Namespace, out: OutputWrapper) -> None:
    limits = Limits(**given_limits(options))
    try:
        tenant = services.tenant_create(
            actor=SYSTEM, slug=options.slug, name=options.name or options.slug, limits=limits
        )
    except ValidationError as error:
        raise CommandFailure(f"no tenant was made: {'; '.join(error.messages)}") from error
    out.write(f"{tenant.slug}: {describe(limits)}")
