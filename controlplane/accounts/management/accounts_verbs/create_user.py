"""Create a user with a role, and print the password."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from django.core.exceptions import ValidationError
from django.core.management.base import OutputWrapper
from django.db import transaction

from controlplane.accounts import selectors, services
from controlplane.accounts.permissions import SYSTEM, Role
from controlplane.commands import CommandFailure


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("user", help="user name")
    parser.add_argument("--role", choices=Role.values, default=Role.VIEWER.value, help="default: viewer")
    parser.add_argument("--tenant", help="slug of the tenant the role is for (default: everywhere)")


def run(options: Namespace, out: OutputWrapper) -> None:
    tenant = None
    if options.tenant is not None:
        tenant = selectors.tenant_by_slug(options.tenant)
        if tenant is None:
            raise CommandFailure(f"there is no tenant {options.tenant}")
    try:
        with transaction.atomic():
            user, password = services.user_create(actor=SYSTEM, username=options.user)
            services.membership_grant(actor=SYSTEM, user=user, role=Role(options.role), tenant=tenant)
    except ValidationError as error:
        raise CommandFailure(f"{options.user} cannot be created: {'; '.join(error.messages)}") from error
    out.write(f"{user.username} may sign in as {options.role} with the password {password}")
