"""Set limits of an API key; those that are not named stay. Effective everywhere within a second."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from django.core.exceptions import ValidationError
from django.core.management.base import OutputWrapper

from controlplane.accounts import selectors, services
from controlplane.accounts.limit_options import add_limit_arguments, describe, given_limits
from controlplane.accounts.permissions import SYSTEM
from controlplane.commands import CommandFailure


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("prefix", help="as `keys list` shows it")
    parser.add_argument("--reason", default="", help="for the audit log")
    add_limit_arguments(parser)


def run(options: Namespace, out: OutputWrapper) -> None:
    key = selectors.key_by_prefix(options.prefix)
    if key is None:
        raise CommandFailure("there is no such key (give the prefix, not the whole key); see `manage.py keys list`")
    changes = given_limits(options)
    if changes:
        try:
            key = services.key_set_limits(
                actor=SYSTEM,
                key=key,
                limits=changes,
                reason=options.reason or "manage.py keys limits",
            )
        except ValidationError as error:
            raise CommandFailure(f"nothing was changed: {'; '.join(error.messages)}") from error
    out.write(f"{key}: {describe(key.limits)}")
