from __future__ import annotations

from datetime import timedelta

import pytest
from django.core.exceptions import ValidationError
from django.db import IntegrityError, connection, transaction
from django.utils import timezone

from controlplane.accounts import keys, services
from controlplane.accounts.models import APIKey, Membership, Tenant, User
from controlplane.accounts.permissions import (
    SYSTEM,
    PermissionRefused,
    Role,
    Scope,
    can,
    principal_of_key,
    principal_of_user,
)
from controlplane.accounts.roles import Action
from controlplane.accounts.services import ScopeEscalation
from controlplane.audit.models import AuditEvent
from tests.controlplane.accounts import factories

pytestmark = [pytest.mark.integration, pytest.mark.django_db]


def last_event() -> AuditEvent:
    event = AuditEvent.objects.first()
    assert event is not None
    return event


def test_a_key_is_kept_as_prefix_and_hash_only() -> None:
    tenant = factories.tenant()
    key, raw = services.key_create(actor=SYSTEM, tenant=tenant, name="ci", scopes=[Scope.INFERENCE])
    secret = raw.split("-", 2)[2]
    row = APIKey.objects.filter(pk=key.pk).values().get()
    assert row["key_hash"] == keys.digest(raw)
    assert raw.startswith(f"gk-{row['prefix']}-")
    assert secret not in str(row)
    event = last_event()
    assert (event.action, event.target, event.tenant) == ("key.create", f"key:{key.prefix}", tenant.slug)
    assert secret not in str(event.after)
    assert row["key_hash"] not in str(event.after)


def test_unknown_and_missing_scopes_are_refused() -> None:
    tenant = factories.tenant()
    with pytest.raises(ValidationError):
        services.key_create(actor=SYSTEM, tenant=tenant, name="x", scopes=["root"])
    with pytest.raises(ValidationError):
        services.key_create(actor=SYSTEM, tenant=tenant, name="x", scopes=[])


def test_a_key_cannot_be_born_expired() -> None:
    with pytest.raises(ValidationError, match="past"):
        services.key_create(
            actor=SYSTEM,
            tenant=factories.tenant(),
            name="x",
            scopes=[Scope.MODELS],
            expires_at=timezone.now() - timedelta(seconds=1),
        )


def test_an_administrator_of_a_tenant_grants_what_he_has_and_no_more() -> None:
    tenant, other = factories.tenant(), factories.tenant()
    actor = factories.principal(Role.ADMINISTRATOR, tenant=tenant)
    key, _ = services.key_create(actor=actor, tenant=tenant, name="ok", scopes=[Scope.INFERENCE, Scope.TENANT])
    assert key.created_by == actor.label
    with pytest.raises(ScopeEscalation, match="management"):
        services.key_create(actor=actor, tenant=tenant, name="up", scopes=[Scope.MANAGEMENT])
    with pytest.raises(PermissionRefused):
        services.key_create(actor=actor, tenant=other, name="aside", scopes=[Scope.INFERENCE])


def test_a_key_cannot_make_a_key_that_can_more_than_itself() -> None:
    tenant = factories.tenant()
    key, _ = services.key_create(actor=SYSTEM, tenant=tenant, name="keys", scopes=[Scope.TENANT])
    actor = principal_of_key(key)
    services.key_create(actor=actor, tenant=tenant, name="same", scopes=[Scope.TENANT])
    with pytest.raises(ScopeEscalation):
        services.key_create(actor=actor, tenant=tenant, name="more", scopes=[Scope.TENANT, Scope.INFERENCE])


def test_roles_are_granted_by_those_who_hold_them() -> None:
    administrator = factories.principal(Role.ADMINISTRATOR)
    someone = factories.user()
    services.membership_grant(actor=administrator, user=someone, role=Role.OPERATOR, tenant=None)
    assert can(principal_of_user(someone), Action.FLEET_OPERATE)
    with pytest.raises(PermissionRefused):
        services.membership_grant(
            actor=factories.principal(Role.OPERATOR), user=someone, role=Role.ADMINISTRATOR, tenant=None
        )
    with pytest.raises(PermissionRefused):
        services.membership_grant(
            actor=factories.principal(Role.ADMINISTRATOR, tenant=factories.tenant()),
            user=someone,
            role=Role.VIEWER,
            tenant=None,
        )


def test_granting_twice_is_granting_once_and_revoking_ends_it() -> None:
    someone = factories.user()
    first = services.membership_grant(actor=SYSTEM, user=someone, role=Role.VIEWER, tenant=None)
    assert services.membership_grant(actor=SYSTEM, user=someone, role=Role.VIEWER, tenant=None) == first
    with pytest.raises(IntegrityError), transaction.atomic():
        Membership(user=someone, role=Role.VIEWER, tenant=None).save()
    services.membership_revoke(actor=SYSTEM, membership=first, reason="left the team")
    assert not can(principal_of_user(someone), Action.FLEET_VIEW)
    assert last_event().reason == "left the team"


def test_an_inactive_user_may_nothing() -> None:
    factories.user(Role.ADMINISTRATOR)
    someone = factories.user(Role.ADMINISTRATOR)
    services.user_set_active(actor=SYSTEM, user=someone, active=False)
    assert not can(principal_of_user(someone), Action.FLEET_VIEW)


def test_the_last_administrator_stays() -> None:
    last, gone = factories.user(Role.ADMINISTRATOR), factories.user(Role.ADMINISTRATOR)
    services.user_set_active(actor=SYSTEM, user=gone, active=False)  # who cannot sign in is no administrator
    services.membership_grant(actor=SYSTEM, user=last, role=Role.ADMINISTRATOR, tenant=factories.tenant())
    membership = last.memberships.get(tenant=None)
    with pytest.raises(ValidationError, match="last administrator"):
        services.membership_revoke(actor=SYSTEM, membership=membership)
    with pytest.raises(ValidationError, match="last administrator"):
        services.user_set_active(actor=SYSTEM, user=last, active=False)
    services.user_set_active(actor=SYSTEM, user=gone, active=True)
    services.membership_revoke(actor=SYSTEM, membership=membership)
    assert not can(principal_of_user(last), Action.USERS_MANAGE)


def test_revoking_is_idempotent_and_told_once() -> None:
    key, _ = services.key_create(actor=SYSTEM, tenant=factories.tenant(), name="x", scopes=[Scope.MODELS])
    first = services.key_revoke(actor=SYSTEM, key=key, reason="leaked")
    again = services.key_revoke(actor=SYSTEM, key=key)
    assert first.revoked_at == again.revoked_at
    assert again.state == "revoked"
    assert AuditEvent.objects.filter(action="key.revoke").count() == 1


def test_a_viewer_does_not_revoke() -> None:
    key, _ = services.key_create(actor=SYSTEM, tenant=factories.tenant(), name="x", scopes=[Scope.MODELS])
    with pytest.raises(PermissionRefused):
        services.key_revoke(actor=factories.principal(Role.VIEWER), key=key)


def test_passwords_are_reset_by_their_owner_or_an_administrator() -> None:
    someone = factories.user()
    password = services.password_reset(actor=principal_of_user(someone), user=someone)
    someone.refresh_from_db()
    assert someone.check_password(password)
    services.password_reset(actor=factories.principal(Role.ADMINISTRATOR), user=someone)
    with pytest.raises(PermissionRefused):
        services.password_reset(actor=factories.principal(Role.OPERATOR), user=someone)
    events = AuditEvent.objects.filter(action="user.password_reset")
    assert [(event.before, event.after) for event in events] == [(None, None)] * 2


@pytest.mark.parametrize("password", ["short", "password123"])
def test_weak_passwords_are_refused(password: str) -> None:
    with pytest.raises(ValidationError):
        services.user_create(actor=SYSTEM, username="weak", password=password)


def test_bootstrap_happens_once() -> None:
    first = services.bootstrap()
    assert first is not None
    assert services.bootstrap() is None
    admin = User.objects.get(username=first.admin_user)
    assert admin.check_password(first.admin_password)
    assert can(principal_of_user(admin), Action.USERS_MANAGE)
    key = APIKey.objects.get()
    assert key.key_hash == keys.digest(first.api_key)
    assert can(principal_of_key(key), Action.INFERENCE_USE)
    assert not can(principal_of_key(key), Action.FLEET_OPERATE)
    assert Tenant.objects.get().slug == "default"


def test_bootstrap_makes_the_tenant_that_is_missing_beside_users() -> None:
    factories.user()
    assert services.bootstrap() is None
    assert Tenant.objects.filter(slug="default").exists()


def test_last_uses_are_written_in_one_statement_and_never_move_back(django_assert_num_queries: object) -> None:
    tenant = factories.tenant()
    made = [services.key_create(actor=SYSTEM, tenant=tenant, name="x", scopes=[Scope.MODELS])[0] for _ in range(3)]
    now = timezone.now()
    with django_assert_num_queries(1):  # type: ignore[operator]
        services.keys_touch(used={key.pk: now for key in made})
    services.keys_touch(used={made[0].pk: now - timedelta(hours=1)})
    services.keys_touch(used={})
    assert set(APIKey.objects.values_list("last_used_at", flat=True)) == {now}


def test_a_refused_change_leaves_no_audit_event() -> None:
    before = AuditEvent.objects.count()
    with pytest.raises(PermissionRefused):
        services.tenant_create(actor=factories.user_principal((Role.VIEWER, None)), slug="t", name="T")
    assert AuditEvent.objects.count() == before
    assert connection.in_atomic_block  # of the test: the service's own was rolled back
