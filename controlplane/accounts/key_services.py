"""The only writers of API keys. Re-exported by `accounts.services`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any

from django.core.exceptions import ValidationError
from django.db import connection, transaction
from django.db.models import Q
from django.utils import timezone

from controlplane.accounts import invalidation, keys
from controlplane.accounts.granting import ScopeEscalation, require_grantable, require_limits_grantable
from controlplane.accounts.limits import FIELDS as LIMIT_FIELDS
from controlplane.accounts.limits import NO_LIMITS, Limits, limits_after
from controlplane.accounts.models import APIKey, Tenant
from controlplane.accounts.permissions import Action, Principal, PrincipalKind, Scope, require
from controlplane.accounts.roles import SCOPE_ACTIONS
from controlplane.accounts.signals import budget_set
from controlplane.audit.services import record


@transaction.atomic
def key_create(
    *,
    actor: Principal,
    tenant: Tenant,
    name: str,
    scopes: Iterable[Scope | str],
    expires_at: datetime | None = None,
    limits: Limits = NO_LIMITS,
    reason: str = "",
) -> tuple[APIKey, str]:
    """A new key of a tenant, and the key itself: show it once, it is kept nowhere.

    Raises ValidationError (unknown scope, no scope, expiry in the past) and ScopeEscalation (grant <= grantor).
    """
    require(actor, Action.KEYS_MANAGE, tenant=tenant.slug)
    # Locked: a tenant that is being deleted gets no key that its deletion does not see.
    tenant = Tenant.objects.select_for_update().get(pk=tenant.pk)
    if tenant.deleted_at is not None:
        raise ValidationError({"tenant": f"the tenant {tenant.slug} is deleted"})
    wanted = sorted({str(scope) for scope in scopes})
    key, raw = _new_key(actor, tenant=tenant, name=name, scopes=wanted, expires_at=expires_at)
    key.apply_limits(limits)
    key.full_clean()
    if expires_at is not None and expires_at <= timezone.now():
        raise ValidationError({"expires_at": "the expiry lies in the past"})
    for scope in wanted:
        require_grantable(actor, SCOPE_ACTIONS[Scope(scope)], tenant=tenant.slug, what=f"the scope {scope}")
    require_limits_grantable(actor, limits)
    key.save()
    record(
        actor=actor,
        action="key.create",
        target=f"key:{key.prefix}",
        before=None,
        after=_key_state(key),
        reason=reason,
        tenant=tenant.slug,
    )
    _announce_budget(key)
    return key, raw


def _new_key(
    actor: Principal, *, tenant: Tenant, name: str, scopes: list[str], expires_at: datetime | None
) -> tuple[APIKey, str]:
    """Not saved yet."""
    raw, prefix = keys.generate()
    digest = keys.digest(raw)
    assert digest is not None
    key = APIKey(
        tenant=tenant,
        name=name,
        prefix=prefix,
        key_hash=digest,
        scopes=scopes,
        created_by=actor.label,
        expires_at=expires_at,
    )
    return key, raw


def _key_state(key: APIKey) -> dict[str, Any]:
    return {
        "name": key.name,
        "scopes": list(key.scopes),
        "expires_at": key.expires_at.isoformat() if key.expires_at else None,
        "revoked": key.revoked_at is not None,
        **{name: value for name, value in key.limits.as_dict().items() if value is not None},
    }


def _locked(key: APIKey) -> APIKey:
    return APIKey.objects.select_for_update(of=("self",)).select_related("tenant").get(pk=key.pk)


def _announce(key: APIKey) -> None:
    digest = keys.KeyHash(key.key_hash)
    transaction.on_commit(lambda: invalidation.publish(digest), robust=True)


def _announce_budget(key: APIKey) -> None:
    subject = f"k:{key.root_key_id}"
    if key.budget_micro_usd is not None:
        transaction.on_commit(lambda: budget_set.send(sender=APIKey, subject=subject), robust=True)


@transaction.atomic
def key_rotate(*, actor: Principal, key: APIKey, overlap: timedelta, reason: str = "") -> tuple[APIKey, str]:
    """A new key with the name, scopes and limits of `key`, and the key itself; the old one works for `overlap` more.

    Both count against the same limits. The new one expires as the old one would have. Raises ValidationError (a key
    that is not active, an overlap below zero) and ScopeEscalation.
    """
    require(actor, Action.KEYS_MANAGE, tenant=key.tenant.slug)
    old = _locked(key)
    if old.state != "active":
        raise ValidationError(f"the key is {old.state}; make a new one")
    if overlap < timedelta(0):
        raise ValidationError({"overlap": "the overlap is not negative"})
    for scope in old.scopes:
        require_grantable(actor, SCOPE_ACTIONS[Scope(scope)], tenant=old.tenant.slug, what=f"the scope {scope}")
    require_limits_grantable(actor, old.limits)
    new, raw = _new_key(actor, tenant=old.tenant, name=old.name, scopes=list(old.scopes), expires_at=old.expires_at)
    new.root_id = old.root_key_id
    new.apply_limits(old.limits)
    new.full_clean()
    new.save()
    before = _key_state(old)
    ends = timezone.now() + overlap
    old.expires_at = ends if old.expires_at is None else min(ends, old.expires_at)
    old.save(update_fields=["expires_at"])
    record(
        actor=actor,
        action="key.rotate",
        target=f"key:{old.prefix}",
        before=before,
        after={**_key_state(old), "successor": new.prefix},
        reason=reason,
        tenant=old.tenant.slug,
    )
    _announce(old)
    return new, raw


@transaction.atomic
def key_set_limits(
    *, actor: Principal, key: APIKey, limits: Limits | Mapping[str, int | None], reason: str = ""
) -> APIKey:
    """For the key and those it was rotated from or to: they count together. A mapping changes the limits that it names.

    Effective everywhere within a second of the commit. A key loosens no limits beyond its own, and never changes its
    own: ScopeEscalation.
    """
    key = _locked(key)
    require(actor, Action.KEYS_MANAGE, tenant=key.tenant.slug)
    if actor.kind is PrincipalKind.KEY and actor.root_key == str(key.root_key_id):
        raise ScopeEscalation(f"{actor.label} cannot change its own limits")
    wanted = limits_after(key.limits, limits)
    require_limits_grantable(actor, wanted)
    before = _key_state(key)
    key.apply_limits(wanted)
    key.full_clean()
    key.save(update_fields=list(LIMIT_FIELDS))
    root = Q(pk=key.root_key_id) | Q(root_id=key.root_key_id)
    for other in APIKey.objects.select_for_update().filter(root, revoked_at=None).exclude(pk=key.pk).order_by("pk"):
        other.apply_limits(wanted)
        other.save(update_fields=list(LIMIT_FIELDS))
        _announce(other)
    record(
        actor=actor,
        action="key.set_limits",
        target=f"key:{key.prefix}",
        before=before,
        after=_key_state(key),
        reason=reason,
        tenant=key.tenant.slug,
    )
    _announce(key)
    _announce_budget(key)
    return key


@transaction.atomic
def key_revoke(*, actor: Principal, key: APIKey, reason: str = "") -> APIKey:
    """The key opens nothing any more, in every process within a second of the commit. Idempotent."""
    key = _locked(key)
    require(actor, Action.KEYS_MANAGE, tenant=key.tenant.slug)
    if key.revoked_at is not None:
        return key
    before = _key_state(key)
    key.revoked_at = timezone.now()
    key.full_clean()
    key.save(update_fields=["revoked_at"])
    record(
        actor=actor,
        action="key.revoke",
        target=f"key:{key.prefix}",
        before=before,
        after=_key_state(key),
        reason=reason,
        tenant=key.tenant.slug,
    )
    _announce(key)
    return key


def keys_touch(*, used: Mapping[int, datetime]) -> None:
    """Record last uses, many keys in one statement; never moves a time back. Not a change that anybody audits."""
    if not used:
        return
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE accounts_apikey AS k SET last_used_at = GREATEST(k.last_used_at, u.at) "
            "FROM unnest(%s::bigint[], %s::timestamptz[]) AS u(id, at) WHERE k.id = u.id",
            [list(used.keys()), list(used.values())],
        )
