"""Bring an old version of the policy back, as a new one."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from django.core.management.base import OutputWrapper

from controlplane.accounts.permissions import SYSTEM
from controlplane.caching import selectors, services
from controlplane.caching.management.store_verbs._errors import explained


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("version", type=int)
    parser.add_argument("--reason", default="manage.py retention rollback")


def run(options: Namespace, out: OutputWrapper) -> None:
    with explained():
        row = services.policy_rollback(
            actor=SYSTEM,
            number=options.version,
            expected_version=selectors.current_policy().version,
            reason=options.reason,
        )
    out.write(f"version {row.number} is in force, with what version {options.version} said")
