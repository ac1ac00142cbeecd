"""Revoke an API key by its prefix (`gk-xxxxxxxx`): it stops working everywhere within a second."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from django.core.management.base import OutputWrapper

from controlplane.accounts import selectors, services
from controlplane.accounts.permissions import SYSTEM
from controlplane.commands import CommandFailure


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("prefix", help="as `keys list` shows it")
    parser.add_argument("--reason", default="", help="for the audit log")


def run(options: Namespace, out: OutputWrapper) -> None:
    key = selectors.key_by_prefix(options.prefix)
    if key is None:
        raise CommandFailure("there is no such key (give the prefix, not the whole key); see `manage.py keys list`")
    services.key_revoke(actor=SYSTEM, key=key, reason=options.reason or "manage.py keys revoke")
    out.write(f"{key} is revoked.")
