from __future__ import annotations

from datetime import timedelta

import pytest
from django.core.exceptions import ValidationError
from django.utils import timezone

from controlplane.accounts import selectors, services
from controlplane.accounts.granting import ScopeEscalation
from controlplane.accounts.limit_options import micro_of_usd
from controlplane.accounts.limits import Limits
from controlplane.accounts.models import APIKey, Membership
from controlplane.accounts.permissions import SYSTEM, PermissionRefused, Role, Scope, principal_of_key
from controlplane.audit.models import AuditEvent
from tests.controlplane.accounts import factories

pytestmark = [pytest.mark.integration, pytest.mark.django_db]


def test_limits_are_set_audited_and_come_with_the_principal_of_a_key() -> None:
    tenant = factories.tenant()
    key, _ = services.key_create(
        actor=SYSTEM, tenant=tenant, name="x", scopes=[Scope.INFERENCE], limits=Limits(requests_per_minute=5)
    )
    services.tenant_set_limits(actor=SYSTEM, tenant=tenant, limits=Limits(budget_micro_usd=0))
    record = selectors.key_record(key.key_hash)  # type: ignore[arg-type]
    assert record is not None
    assert record.principal.limits == Limits(requests_per_minute=5)
    assert record.principal.tenant_limits == Limits(budget_micro_usd=0)
    event = AuditEvent.objects.get(action="tenant.set_limits")
    assert event.after == {"budget_micro_usd": 0}


def test_limits_of_zero_requests_are_refused() -> None:
    with pytest.raises(ValidationError):
        services.tenant_set_limits(actor=SYSTEM, tenant=factories.tenant(), limits=Limits(requests_per_minute=0))


def test_a_tenants_limits_are_not_his_own_to_set() -> None:
    tenant = factories.tenant()
    with pytest.raises(PermissionRefused):
        services.tenant_set_limits(actor=factories.principal(Role.BILLING), tenant=tenant, limits=Limits())


def test_deleting_a_tenant_takes_keys_and_roles_and_keeps_the_slug() -> None:
    tenant = factories.tenant("gone")
    services.key_create(actor=SYSTEM, tenant=tenant, name="x", scopes=[Scope.INFERENCE])
    factories.user(Role.OPERATOR, tenant=tenant)
    services.tenant_delete(actor=SYSTEM, tenant=tenant, reason="contract ended")
    assert not APIKey.objects.filter(tenant=tenant).exists()
    assert not Membership.objects.filter(tenant=tenant).exists()
    assert selectors.tenant_by_slug("gone") is None
    with pytest.raises(ValidationError, match="deleted tenant"):
        factories.tenant("gone")
    with pytest.raises(ValidationError, match="deleted"):
        services.key_create(actor=SYSTEM, tenant=tenant, name="x", scopes=[Scope.INFERENCE])
    assert AuditEvent.objects.get(action="tenant.delete").reason == "contract ended"


def test_default_cannot_be_deleted() -> None:
    with pytest.raises(ValidationError):
        services.tenant_delete(actor=SYSTEM, tenant=factories.tenant("default"))


def test_a_deleted_tenant_is_purged_at_once_and_again_when_its_requests_have_ended() -> None:
    tenant = factories.tenant()
    services.tenant_delete(actor=SYSTEM, tenant=tenant)
    now, later = timezone.now(), timedelta(minutes=15)
    assert list(selectors.tenants_to_purge(now=now, again_after=later)) == [tenant]
    services.tenant_purged(tenant=tenant)
    assert not selectors.tenants_to_purge(now=now, again_after=later)
    assert list(selectors.tenants_to_purge(now=now + later * 2, again_after=later)) == [tenant]


def test_a_rotated_key_works_on_for_the_overlap_and_counts_with_its_successor() -> None:
    tenant = factories.tenant()
    old, _ = services.key_create(
        actor=SYSTEM, tenant=tenant, name="x", scopes=[Scope.INFERENCE], limits=Limits(requests_per_minute=5)
    )
    new, raw = services.key_rotate(actor=SYSTEM, key=old, overlap=timedelta(hours=1))
    old.refresh_from_db()
    assert old.state == new.state == "active"
    assert old.expires_at is not None
    assert timedelta(minutes=59) < old.expires_at - timezone.now() <= timedelta(hours=1)
    assert (new.limits, new.scopes, new.root_key_id) == (old.limits, old.scopes, old.pk)
    assert raw.startswith(f"gk-{new.prefix}-")
    third, _ = services.key_rotate(actor=SYSTEM, key=new, overlap=timedelta(0))
    new.refresh_from_db()
    assert new.state == "expired"
    assert third.root_key_id == old.pk


def test_only_active_keys_are_rotated() -> None:
    key, _ = services.key_create(actor=SYSTEM, tenant=factories.tenant(), name="x", scopes=[Scope.INFERENCE])
    services.key_revoke(actor=SYSTEM, key=key)
    with pytest.raises(ValidationError, match="revoked"):
        services.key_rotate(actor=SYSTEM, key=key, overlap=timedelta(0))


def test_both_of_a_rotated_pair_get_new_limits() -> None:
    old, _ = services.key_create(
        actor=SYSTEM, tenant=factories.tenant(), name="x", scopes=[Scope.INFERENCE], limits=Limits(tokens_per_minute=9)
    )
    new, _ = services.key_rotate(actor=SYSTEM, key=old, overlap=timedelta(hours=1))
    services.key_set_limits(actor=SYSTEM, key=new, limits={"requests_per_minute": 5})
    old.refresh_from_db()
    assert old.limits == Limits(requests_per_minute=5, tokens_per_minute=9)


def test_single_limits_are_changed_on_what_is_there_now() -> None:
    tenant = factories.tenant()
    services.tenant_set_limits(actor=SYSTEM, tenant=tenant, limits=Limits(requests_per_minute=5))
    changed = services.tenant_set_limits(actor=SYSTEM, tenant=tenant, limits={"tokens_per_minute": 9})
    assert changed.limits == Limits(requests_per_minute=5, tokens_per_minute=9), "`tenant` was read before"


def test_a_key_with_limits_gives_nobody_more_and_leaves_its_own_alone() -> None:
    tenant = factories.tenant()
    own, _ = services.key_create(
        actor=SYSTEM, tenant=tenant, name="own", scopes=[Scope.TENANT], limits=Limits(budget_micro_usd=10)
    )
    free, _ = services.key_create(actor=SYSTEM, tenant=tenant, name="free", scopes=[Scope.TENANT])
    actor = principal_of_key(own)
    for limits in (Limits(), Limits(budget_micro_usd=11)):
        with pytest.raises(ScopeEscalation, match="budget"):
            services.key_create(actor=actor, tenant=tenant, name="x", scopes=[Scope.TENANT], limits=limits)
    with pytest.raises(ScopeEscalation, match="its own"):
        services.key_set_limits(actor=actor, key=own, limits=Limits(budget_micro_usd=1))
    with pytest.raises(ScopeEscalation, match="budget"):
        services.key_rotate(actor=actor, key=free, overlap=timedelta(0))
    made, _ = services.key_create(
        actor=actor, tenant=tenant, name="x", scopes=[Scope.TENANT], limits=Limits(budget_micro_usd=10)
    )
    with pytest.raises(ScopeEscalation, match="budget"):
        services.key_set_limits(actor=actor, key=made, limits={"budget_micro_usd": None})


@pytest.mark.parametrize("text", ["1e999999", "9e99999", "1e30", "nan", "x", "0.0000001"])
def test_amounts_that_cannot_be_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=text):
        micro_of_usd(text)
