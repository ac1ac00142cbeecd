"""Set limits of a tenant; those that are not named stay. Effective everywhere within a second."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from django.core.exceptions import ValidationError
from django.core.management.base import OutputWrapper

from controlplane.accounts import selectors, services
from controlplane.accounts.limit_options import add_limit_arguments, describe, given_limits
from controlplane.accounts.permissions import SYSTEM
from controlplane.commands import CommandFailure


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("slug")
    parser.add_argument("--reason", default="", help="for the audit log")
    add_limit_arguments(parser)


def run(options: Namespace, out: OutputWrapper) -> None:
    tenant = selectors.tenant_by_slug(options.slug)
    if tenant is None:
        raise CommandFailure(f"there is no tenant {options.slug}; see `manage.py tenants list`")
    changes = given_limits(options)
    if changes:
        try:
            tenant = services.tenant_set_limits(
                actor=SYSTEM,
                tenant=tenant,
                limits=changes,
                reason=options.reason or "manage.py tenants limits",
            )
        except ValidationError as error:
            raise CommandFailure(f"nothing was changed: {'; '.join(error.messages)}") from error
    out.write(f"{tenant.slug}: {describe(tenant.limits)}")
