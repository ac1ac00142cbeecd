"""The only writers of retention policies.

Each change is one new version of the whole policy, its audit event in the same transaction. The version goes to all
processes when the transaction is committed, and a sweep frees the space.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import msgspec
from django.db import connection, transaction

from controlplane.accounts.models import APIKey
from controlplane.accounts.permissions import Action, Principal, require
from controlplane.audit.services import record
from controlplane.caching import selectors
from controlplane.caching.documents import changes, numbered, to_body
from controlplane.caching.errors import PolicyConflict, PolicyRefused, UnknownPin
from controlplane.caching.models import PolicyVersion
from controlplane.caching.publication import publish_current, published_version
from controlplane.caching.store import disk, store_settings
from controlplane.fleet.signals import run_soon
from workers.kvstore.policy import Pin, PolicyError, RetentionPolicy

POLICY_LOCK: Final = 0x6A11E005
"""PostgreSQL advisory lock: versions are numbered one after the other."""
TEND_TASK: Final = "controlplane.caching.tasks.tend"
LOWEST_VERSION: Final = 1


def policy_problems(policy: RetentionPolicy) -> list[str]:
    """Every reason why this policy must not be published; empty where it may be."""
    room = disk()
    problems = []
    try:
        numbered(policy, LOWEST_VERSION).check(disk_bytes=room.total if room is not None else None)
    except PolicyError as error:
        problems += str(error).split("; ")
    most = store_settings().most_bytes
    if most is not None and policy.total_bytes is not None and policy.total_bytes > most:
        problems.append(f"the total budget is more than this installation allows the store ({most} bytes)")
    names = [pin.name for pin in policy.pins]
    problems += [f"two pins have the name {name!r}" for name in sorted({n for n in names if names.count(n) > 1})]
    # What an older release took may stay and be removed; only new names are looked at.
    known = {pin.name for pin in selectors.current_policy().pins}
    problems += [problem for name in names if name not in known and (problem := pin_name_problem(name))]
    return problems + _rule_problems(policy)


def pin_name_problem(name: str) -> str:
    """Why a pin cannot have this name; empty where it can. A name is one part of a path in the API."""
    if not name.strip():
        return "a pin needs a name"
    if name in (".", "..") or not name.isprintable() or "/" in name or "\\" in name:
        return f"a pin cannot be named {name!r}: no slashes, no control characters, not . or .."
    return ""


def _rule_problems(policy: RetentionPolicy) -> list[str]:
    problems = []
    known = set(map(str, APIKey.objects.values_list("pk", flat=True)))
    for place, rule in enumerate(policy.rules, 1):
        if rule.key_id is None and rule.header is None and rule.tools is None:
            problems.append(f"rule {place} has no condition: it would hide all later ones; set the fallback instead")
        if rule.key_id is not None and rule.key_id not in known:
            problems.append(f"rule {place}: there is no API key {rule.key_id}")
        if rule.header is not None and not rule.header[0].replace("-", "").isalnum():
            problems.append(f"rule {place}: {rule.header[0]!r} is no name of a header")
    return problems


def policy_save(*, actor: Principal, draft: RetentionPolicy, expected_version: int, reason: str) -> PolicyVersion:
    """Put `draft` in force as the next version (its own number does not matter).

    Raises PermissionRefused, PolicyConflict where `expected_version` is not the one in force any more, and
    PolicyRefused with every reason.
    """
    return _save(actor=actor, draft=draft, expected_version=expected_version, reason=reason, action="retention.save")


def policy_rollback(*, actor: Principal, number: int, expected_version: int, reason: str) -> PolicyVersion:
    """Bring an old version back, as a new one. Raises UnknownVersion, and what `policy_save` raises."""
    require(actor, Action.CACHE_MANAGE)
    return _save(
        actor=actor,
        draft=selectors.policy_of(selectors.version(number)),
        expected_version=expected_version,
        reason=reason,
        action="retention.rollback",
        restores=number,
    )


def pins_add(*, actor: Principal, pins: Mapping[str, str], reason: str) -> PolicyVersion:
    """Keep prefixes (name to the hash of their last block, hex) until the pins are removed.

    Pinning a name again moves it. Raises PermissionRefused and PolicyRefused.
    """

    def pinned(policy: RetentionPolicy) -> RetentionPolicy:
        others = [pin for pin in policy.pins if pin.name not in pins]
        new = [Pin(name=name, tip=tip) for name, tip in pins.items()]
        return msgspec.structs.replace(policy, pins=(*others, *new))

    return _edit(actor=actor, change=pinned, reason=reason, action="retention.pin")


def pin_remove(*, actor: Principal, name: str, reason: str) -> PolicyVersion:
    """Raises UnknownPin."""

    def unpinned(policy: RetentionPolicy) -> RetentionPolicy:
        left = tuple(pin for pin in policy.pins if pin.name != name)
        if len(left) == len(policy.pins):
            raise UnknownPin(f"no prefix is pinned as {name!r}")
        return msgspec.structs.replace(policy, pins=left)

    return _edit(actor=actor, change=unpinned, reason=reason, action="retention.unpin")


@transaction.atomic
def _edit(
    *, actor: Principal, change: Callable[[RetentionPolicy], RetentionPolicy], reason: str, action: str
) -> PolicyVersion:
    """A change that fits whatever version is in force: nobody's other change is lost by it."""
    require(actor, Action.CACHE_MANAGE)
    _lock()
    current = selectors.current_policy()
    return _save(actor=actor, draft=change(current), expected_version=current.version, reason=reason, action=action)


def _lock() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(%s)", [POLICY_LOCK])


@transaction.atomic
def _save(
    *,
    actor: Principal,
    draft: RetentionPolicy,
    expected_version: int,
    reason: str,
    action: str,
    restores: int | None = None,
) -> PolicyVersion:
    require(actor, Action.CACHE_MANAGE)
    reason = reason.strip()
    if not reason:
        raise PolicyRefused("say why: the reason goes into the history and the audit log")
    _lock()
    current = selectors.current_policy()
    if current.version != expected_version:
        raise PolicyConflict(expected=expected_version, current=current.version)
    differing = changes(current, draft)
    if not differing:
        raise PolicyRefused(f"nothing differs from version {current.version}")
    if problems := policy_problems(draft):
        raise PolicyRefused(*problems)
    number = max(current.version, published_version()) + 1  # above whatever any process may already know
    row = PolicyVersion(
        number=number,
        body=to_body(numbered(draft, number)),
        created_by=actor.label,
        reason=reason,
        restores=restores,
    )
    row.full_clean()
    row.save()
    record(
        actor=actor,
        action=action,
        target=f"retention:{number}",
        before={"version": current.version} | {change.field: change.before for change in differing},
        after={"version": number} | {change.field: change.after for change in differing},
        reason=reason,
    )
    transaction.on_commit(lambda: publish_current(), robust=True)
    run_soon(TEND_TASK)
    return row
