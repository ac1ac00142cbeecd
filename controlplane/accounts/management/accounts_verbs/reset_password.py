"""Give a user a new password and print it. The user's sessions end."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from django.core.management.base import OutputWrapper

from controlplane.accounts import selectors, services
from controlplane.accounts.permissions import SYSTEM
from controlplane.commands import CommandFailure


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("user", nargs="?", default="admin", help="user name (default: admin)")


def run(options: Namespace, out: OutputWrapper) -> None:
    user = selectors.user_by_name(options.user)
    if user is None:
        names = ", ".join(user.username for user in selectors.users()) or "none"
        raise CommandFailure(f"there is no user {options.user}; users are: {names}")
    password = services.password_reset(actor=SYSTEM, user=user, reason="manage.py accounts reset-password")
    out.write(f"New password of {user.username}: {password}")
