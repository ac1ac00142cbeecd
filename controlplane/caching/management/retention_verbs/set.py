"""Change the policy; it is in force everywhere within a second. See `retention preview` first."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from django.core.management.base import OutputWrapper

from controlplane.accounts.permissions import SYSTEM
from controlplane.caching import selectors, services
from controlplane.caching.management.retention_verbs import _draft
from controlplane.caching.management.store_verbs._errors import explained


def add_arguments(parser: ArgumentParser) -> None:
    _draft.add_arguments(parser)
    parser.add_argument("--reason", default="manage.py retention set", help="for the history and the audit log")
    parser.add_argument("--expect", type=int, metavar="VERSION", help="refuse where another version is in force")


def run(options: Namespace, out: OutputWrapper) -> None:
    with explained():
        expected = selectors.current_policy().version if options.expect is None else options.expect
        row = services.policy_save(
            actor=SYSTEM, draft=_draft.draft(options), expected_version=expected, reason=options.reason
        )
    out.write(f"version {row.number} is in force; `manage.py retention rollback {expected}` goes back")
