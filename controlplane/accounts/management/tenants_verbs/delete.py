"""Delete a tenant: its keys end within a second, its cached blocks go; the ledger keeps its sums."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from django.core.exceptions import ValidationError
from django.core.management.base import OutputWrapper

from controlplane.accounts import selectors, services
from controlplane.accounts.permissions import SYSTEM
from controlplane.commands import CommandFailure


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("slug")
    parser.add_argument("--yes", action="store_true", help="required: this cannot be undone")
    parser.add_argument("--reason", default="", help="for the audit log")


def run(options: Namespace, out: OutputWrapper) -> None:
    tenant = selectors.tenant_by_slug(options.slug)
    if tenant is None:
        raise CommandFailure(f"there is no tenant {options.slug}; see `manage.py tenants list`")
    if not options.yes:
        raise CommandFailure(f"this ends {tenant.keys.count()} keys of {tenant.slug} for good; add --yes to do it")
    try:
        services.tenant_delete(actor=SYSTEM, tenant=tenant, reason=options.reason or "manage.py tenants delete")
    except ValidationError as error:
        raise CommandFailure("; ".join(error.messages)) from error
    out.write(f"{tenant.slug} is deleted; the control queue has its cached blocks dropped.")
