"""Create an API key and print it: it is shown once."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from datetime import timedelta

from django.core.exceptions import ValidationError
from django.core.management.base import OutputWrapper
from django.utils import timezone

from controlplane.accounts import selectors, services
from controlplane.accounts.limit_options import add_limit_arguments, given_limits
from controlplane.accounts.limits import Limits
from controlplane.accounts.permissions import DEFAULT_TENANT, SYSTEM, Scope
from controlplane.commands import CommandFailure


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("name", help="what the key is for")
    parser.add_argument("--tenant", default=DEFAULT_TENANT, help=f"slug (default: {DEFAULT_TENANT})")
    parser.add_argument(
        "--scope", action="append", choices=Scope.values, help="may be repeated (default: inference and models)"
    )
    parser.add_argument("--days", type=int, help="expires after so many days (default: never)")
    add_limit_arguments(parser)


def run(options: Namespace, out: OutputWrapper) -> None:
    tenant = selectors.tenant_by_slug(options.tenant)
    if tenant is None:
        known = (
            ", ".join(tenant.slug for tenant in selectors.tenants()) or "none yet; run `manage.py accounts bootstrap`"
        )
        raise CommandFailure(f"there is no tenant {options.tenant}; tenants are: {known}")
    try:
        _, raw = services.key_create(
            actor=SYSTEM,
            tenant=tenant,
            name=options.name,
            scopes=options.scope or [Scope.INFERENCE, Scope.MODELS],
            expires_at=None if options.days is None else timezone.now() + timedelta(days=options.days),
            limits=Limits(**given_limits(options)),
            reason="manage.py keys create",
        )
    except ValidationError as error:
        raise CommandFailure(f"no key was made: {'; '.join(error.messages)}") from error
    out.write(raw)
