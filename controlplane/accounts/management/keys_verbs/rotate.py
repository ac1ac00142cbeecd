"""Replace an API key and print the new one; the old one works on for the overlap."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from datetime import timedelta

from django.core.exceptions import ValidationError
from django.core.management.base import OutputWrapper

from controlplane.accounts import selectors, services
from controlplane.accounts.permissions import SYSTEM
from controlplane.commands import CommandFailure


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("prefix", help="as `keys list` shows it")
    parser.add_argument("--overlap-hours", type=float, default=24.0, help="how long both work (default: 24)")
    parser.add_argument("--reason", default="", help="for the audit log")


def run(options: Namespace, out: OutputWrapper) -> None:
    key = selectors.key_by_prefix(options.prefix)
    if key is None:
        raise CommandFailure("there is no such key (give the prefix, not the whole key); see `manage.py keys list`")
    try:
        _, raw = services.key_rotate(
            actor=SYSTEM,
            key=key,
            overlap=timedelta(hours=options.overlap_hours),
            reason=options.reason or "manage.py keys rotate",
        )
    except ValidationError as error:
        raise CommandFailure(f"no key was made: {'; '.join(error.messages)}") from error
    out.write(raw)
