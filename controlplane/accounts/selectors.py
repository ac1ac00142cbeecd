"""Reads of users, tenants and keys. Keys are looked up by their hash; no raw key comes in here or goes out."""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db import models
from django.db.models import QuerySet
from django.utils import timezone

from controlplane.accounts import keys
from controlplane.accounts.models import APIKey, Tenant, User
from controlplane.accounts.permissions import Principal, principal_of_key


@dataclass(frozen=True, slots=True)
class KeyRecord:
    """A key as the database knows it now. `principal` may be used only while `usable` is true."""

    key_id: int
    key_hash: keys.KeyHash
    principal: Principal
    expires_at: datetime | None
    revoked: bool

    @property
    def usable(self) -> bool:
        return not self.revoked and (self.expires_at is None or self.expires_at > timezone.now())


def key_record(digest: keys.KeyHash) -> KeyRecord | None:
    """The key of a hash, usable or not; None for what is no key of ours. One query."""
    key = APIKey.objects.select_related("tenant").filter(key_hash=digest).first()
    if key is None or not hmac.compare_digest(key.key_hash, digest):
        return None
    return KeyRecord(
        key_id=key.pk,
        key_hash=digest,
        principal=principal_of_key(key),
        expires_at=key.expires_at,
        revoked=key.revoked_at is not None,
    )


def api_keys(*, tenant: str | None = None) -> QuerySet[APIKey]:
    """Keys, newest first, of one tenant (its slug) or of all, with their tenant loaded."""
    rows = APIKey.objects.select_related("tenant").order_by("-created_at", "-id")
    return rows if tenant is None else rows.filter(tenant__slug=tenant)


def key_by_prefix(prefix: str) -> APIKey | None:
    """By the printable name `gk-xxxxxxxx` or its last part. None too where two keys share the prefix."""
    found = list(APIKey.objects.select_related("tenant").filter(prefix=prefix.removeprefix("gk-"))[:2])
    return found[0] if len(found) == 1 else None


def tenants() -> QuerySet[Tenant]:
    """Without the deleted ones."""
    return Tenant.objects.filter(deleted_at=None).order_by("slug")


def tenant_by_slug(slug: str) -> Tenant | None:
    return tenants().filter(slug=slug).first()


def tenants_to_purge(*, now: datetime, again_after: timedelta) -> QuerySet[Tenant]:
    """Deleted tenants whose blocks are still to be dropped, or to be dropped once more: what ran when the tenant was
    deleted may have written after the first purge, and has ended after `again_after`.
    """
    gone = Tenant.objects.filter(deleted_at__isnull=False)
    late = models.Q(deleted_at__lte=now - again_after, purged_at__lt=models.F("deleted_at") + again_after)
    return gone.filter(models.Q(purged_at=None) | late).order_by("deleted_at")


def limited_subjects() -> tuple[list[Tenant], list[APIKey]]:
    """Tenants and keys that have a budget."""
    keys_with = APIKey.objects.filter(budget_micro_usd__isnull=False, revoked_at=None)
    return list(tenants().filter(budget_micro_usd__isnull=False)), list(keys_with)


def users() -> QuerySet[User]:
    """Users with their memberships and tenants loaded (three queries, whatever their number)."""
    return User.objects.order_by("username").prefetch_related("memberships__tenant")


def user_by_name(username: str) -> User | None:
    return User.objects.filter(username=username).first()
