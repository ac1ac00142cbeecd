"""The only writers of tenants. Re-exported by `accounts.services`."""

from __future__ import annotations

from collections.abc import Mapping

from django.core.exceptions import ValidationError
from django.db import transaction
from django.utils import timezone

from controlplane.accounts import invalidation
from controlplane.accounts.limits import FIELDS as LIMIT_FIELDS
from controlplane.accounts.limits import NO_LIMITS, Limits, limits_after
from controlplane.accounts.models import Tenant
from controlplane.accounts.permissions import DEFAULT_TENANT, Action, Principal, require
from controlplane.accounts.signals import budget_set, tenant_deleted
from controlplane.audit.services import record


@transaction.atomic
def tenant_create(*, actor: Principal, slug: str, name: str, limits: Limits = NO_LIMITS) -> Tenant:
    """Raises ValidationError; the slug of a deleted tenant is not given out again."""
    require(actor, Action.TENANTS_MANAGE)
    if Tenant.objects.filter(slug=slug, deleted_at__isnull=False).exists():
        raise ValidationError({"slug": "a deleted tenant had this slug; its sums keep it, choose another"})
    tenant = Tenant(slug=slug, name=name)
    tenant.apply_limits(limits)
    tenant.full_clean()
    tenant.save()
    record(
        actor=actor,
        action="tenant.create",
        target=f"tenant:{slug}",
        before=None,
        after={"name": name, **_set(limits)},
        tenant=slug,
    )
    _announce(tenant)
    return tenant


@transaction.atomic
def tenant_set_limits(
    *, actor: Principal, tenant: Tenant, limits: Limits | Mapping[str, int | None], reason: str = ""
) -> Tenant:
    """For all keys of the tenant together; effective everywhere within a second of the commit. A mapping changes the
    limits that it names.
    """
    require(actor, Action.TENANTS_MANAGE)
    tenant = Tenant.objects.select_for_update().get(pk=tenant.pk)
    before = _set(tenant.limits)
    wanted = limits_after(tenant.limits, limits)
    tenant.apply_limits(wanted)
    tenant.full_clean()
    tenant.save(update_fields=list(LIMIT_FIELDS))
    record(
        actor=actor,
        action="tenant.set_limits",
        target=f"tenant:{tenant.slug}",
        before=before,
        after=_set(wanted),
        reason=reason,
        tenant=tenant.slug,
    )
    _announce(tenant)
    return tenant


@transaction.atomic
def tenant_delete(*, actor: Principal, tenant: Tenant, reason: str = "") -> None:
    """Keys stop working everywhere within a second and are gone, memberships too; the control queue has store and
    pools drop the tenant's blocks. What it used stays in the ledger, under its slug, which nobody gets again.

    Raises ValidationError for the tenant `default`. Idempotent.
    """
    require(actor, Action.TENANTS_MANAGE)
    tenant = Tenant.objects.select_for_update().get(pk=tenant.pk)
    if tenant.slug == DEFAULT_TENANT:
        raise ValidationError(f"the tenant {DEFAULT_TENANT} is where users without another work; it cannot be deleted")
    if tenant.deleted_at is not None:
        return
    keys = tenant.keys.count()
    tenant.keys.all().delete()
    tenant.memberships.all().delete()
    tenant.deleted_at = timezone.now()
    tenant.save(update_fields=["deleted_at"])
    record(
        actor=actor,
        action="tenant.delete",
        target=f"tenant:{tenant.slug}",
        before={"name": tenant.name, "keys": keys, **_set(tenant.limits)},
        after=None,
        reason=reason,
        tenant=tenant.slug,
    )
    tenant_deleted.send(sender=Tenant, tenant=tenant.slug, actor=actor)
    _announce(tenant)


def tenant_purged(*, tenant: Tenant) -> None:
    """Store and pools were told to drop what a deleted tenant had. The purge itself is in the audit log."""
    Tenant.objects.filter(pk=tenant.pk).update(purged_at=timezone.now())


def _set(limits: Limits) -> dict[str, int | None]:
    return {name: value for name, value in limits.as_dict().items() if value is not None}


def _announce(tenant: Tenant) -> None:
    slug = tenant.slug
    if tenant.budget_micro_usd is not None and tenant.deleted_at is None:
        transaction.on_commit(lambda: budget_set.send(sender=Tenant, subject=f"t:{slug}"), robust=True)
    transaction.on_commit(lambda: invalidation.publish_tenant(slug), robust=True)
