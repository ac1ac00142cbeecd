"""The only writers of API keys. Re-exported by `accounts.services`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from django.core.exceptions import ValidationError
from django.db import connection, transaction
from django.utils import timezone

from controlplane.accounts import invalidation, keys
from controlplane.accounts.granting import require_grantable
from controlplane.accounts.models import APIKey, Tenant
from controlplane.accounts.permissions import Action, Principal, Scope, require
from controlplane.accounts.roles import SCOPE_ACTIONS
from controlplane.audit.services import record


@transaction.atomic
def key_create(
    *,
    actor: Principal,
    tenant: Tenant,
    name: str,
    scopes: Iterable[Scope | str],
    expires_at: datetime | None = None,
    reason: str = "",
) -> tuple[APIKey, str]:
    """A new key of a tenant, and the key itself: show it once, it is kept nowhere.

    Raises ValidationError (unknown scope, no scope, expiry in the past) and ScopeEscalation (grant <= grantor).
    """
    require(actor, Action.KEYS_MANAGE, tenant=tenant.slug)
    wanted = sorted({str(scope) for scope in scopes})
    raw, prefix = keys.generate()
    digest = keys.digest(raw)
    assert digest is not None
    key = APIKey(
        tenant=tenant,
        name=name,
        prefix=prefix,
        key_hash=digest,
        scopes=wanted,
        created_by=actor.label,
        expires_at=expires_at,
    )
    key.full_clean()
    if expires_at is not None and expires_at <= timezone.now():
        raise ValidationError({"expires_at": "the expiry lies in the past"})
    for scope in wanted:
        require_grantable(actor, SCOPE_ACTIONS[Scope(scope)], tenant=tenant.slug, what=f"the scope {scope}")
    key.save()
    record(
        actor=actor,
        action="key.create",
        target=f"key:{prefix}",
        before=None,
        after=_key_state(key),
        reason=reason,
        tenant=tenant.slug,
    )
    return key, raw


def _key_state(key: APIKey) -> dict[str, Any]:
    return {
        "name": key.name,
        "scopes": list(key.scopes),
        "expires_at": key.expires_at.isoformat() if key.expires_at else None,
        "revoked": key.revoked_at is not None,
    }


@transaction.atomic
def key_revoke(*, actor: Principal, key: APIKey, reason: str = "") -> APIKey:
    """The key opens nothing any more, in every process within a second of the commit. Idempotent."""
    key = APIKey.objects.select_for_update(of=("self",)).select_related("tenant").get(pk=key.pk)
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
    digest = keys.KeyHash(key.key_hash)
    transaction.on_commit(lambda: invalidation.publish(digest), robust=True)
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
