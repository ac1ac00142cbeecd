"""Reads of policies, alerts and warming jobs."""

from __future__ import annotations

from itertools import pairwise
from typing import Final

from django.db.models import QuerySet

from controlplane.caching.documents import Change, changes, numbered, to_policy
from controlplane.caching.errors import UnknownVersion
from controlplane.caching.models import FINAL_WARM_STATES, PolicyVersion, StoreAlert, WarmJob
from workers.kvstore.policy import DEFAULT_POLICY, RetentionPolicy

ALERTS_SHOWN: Final = 20


def current_version() -> PolicyVersion | None:
    """None only where the migrations' first version was removed by hand."""
    return PolicyVersion.objects.first()


def current_policy() -> RetentionPolicy:
    """The policy in force."""
    row = current_version()
    return DEFAULT_POLICY if row is None else policy_of(row)


def policy_of(row: PolicyVersion) -> RetentionPolicy:
    return numbered(to_policy(row.body), row.number)


def versions() -> QuerySet[PolicyVersion]:
    """Newest first."""
    return PolicyVersion.objects.all()


def version(number: int) -> PolicyVersion:
    """Raises UnknownVersion."""
    row = PolicyVersion.objects.filter(number=number).first()
    if row is None:
        raise UnknownVersion(f"there is no version {number} of the retention policy")
    return row


def version_changes(rows: list[PolicyVersion]) -> dict[int, list[Change]]:
    """Number to what it changed against the version before it. One further query."""
    if not rows:
        return {}
    policies = {row.number: policy_of(row) for row in rows}
    lowest = min(policies)
    before = PolicyVersion.objects.filter(number__lt=lowest).first()
    ordered = ([policy_of(before)] if before else []) + [policies[number] for number in sorted(policies)]
    found = {after.version: changes(first, after) for first, after in pairwise(ordered)}
    return {number: found.get(number, []) for number in policies}


def open_alerts() -> QuerySet[StoreAlert]:
    return StoreAlert.objects.filter(cleared_at=None).order_by("since", "id")


def past_alerts() -> QuerySet[StoreAlert]:
    return StoreAlert.objects.exclude(cleared_at=None)[:ALERTS_SHOWN]


def warm_jobs() -> QuerySet[WarmJob]:
    """Newest first, without their prompts."""
    return WarmJob.objects.defer("prompts")


def warm_jobs_waiting() -> QuerySet[WarmJob]:
    """Oldest first."""
    return WarmJob.objects.exclude(state__in=FINAL_WARM_STATES).defer("prompts").order_by("id")
