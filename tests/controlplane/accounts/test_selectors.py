from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import timedelta

import pytest
from django.utils import timezone

from controlplane.accounts import keys, selectors, services
from controlplane.accounts.models import APIKey
from controlplane.accounts.permissions import SYSTEM, Action, Role, Scope, can, principal_of_user
from controlplane.accounts.selectors import KeyRecord
from tests.controlplane.accounts import factories

pytestmark = [pytest.mark.integration, pytest.mark.django_db]

Queries = Callable[[int], AbstractContextManager[object]]


def found_by(raw: str) -> KeyRecord | None:
    digest = keys.digest(raw)
    assert digest is not None
    return selectors.key_record(digest)


def test_a_key_is_found_by_itself_only(django_assert_num_queries: Queries) -> None:
    tenant = factories.tenant("acme")
    key, raw = services.key_create(actor=SYSTEM, tenant=tenant, name="x", scopes=[Scope.INFERENCE])
    with django_assert_num_queries(1):
        found = found_by(raw)
    assert found is not None
    assert found.usable
    assert found.principal.tenant == "acme"
    assert found.principal.label == f"key gk-{key.prefix}"
    assert found_by(raw[:-1] + ("a" if raw[-1] != "a" else "b")) is None


def test_expired_and_revoked_keys_are_found_unusable() -> None:
    tenant = factories.tenant()
    key, raw = services.key_create(actor=SYSTEM, tenant=tenant, name="x", scopes=[Scope.INFERENCE])
    APIKey.objects.filter(pk=key.pk).update(expires_at=timezone.now() - timedelta(seconds=1))
    expired = found_by(raw)
    assert expired is not None
    assert not expired.usable
    APIKey.objects.filter(pk=key.pk).update(expires_at=None)
    services.key_revoke(actor=SYSTEM, key=key)
    revoked = found_by(raw)
    assert revoked is not None
    assert not revoked.usable


@pytest.mark.parametrize("size", [1, 6])
def test_lists_cost_the_same_whatever_their_length(size: int, django_assert_num_queries: Queries) -> None:
    tenant = factories.tenant()
    for _ in range(size):
        factories.user(Role.VIEWER, tenant=tenant)
        services.key_create(actor=SYSTEM, tenant=tenant, name="x", scopes=[Scope.MODELS])
    with django_assert_num_queries(1):
        assert len([key.tenant.slug for key in selectors.api_keys(tenant=tenant.slug)]) == size
    with django_assert_num_queries(3):
        tenants = [m.tenant for user in selectors.users() for m in user.memberships.all()]
    assert len(tenants) == size


def test_a_principal_costs_one_query(django_assert_num_queries: Queries) -> None:
    user = factories.user(Role.VIEWER, tenant=factories.tenant("b"))
    services.membership_grant(actor=SYSTEM, user=user, role=Role.OPERATOR, tenant=factories.tenant("a"))
    with django_assert_num_queries(1):
        principal = principal_of_user(user)
    assert principal.tenant == "a"
    services.membership_grant(actor=SYSTEM, user=user, role=Role.VIEWER, tenant=None)
    assert principal_of_user(user).tenant == "default"


def test_own_requests_run_where_the_user_may_infer() -> None:
    user = factories.user(Role.VIEWER, tenant=factories.tenant("a"))
    services.membership_grant(actor=SYSTEM, user=user, role=Role.BILLING, tenant=factories.tenant("b"))
    assert principal_of_user(user).tenant == "a"
    services.membership_grant(actor=SYSTEM, user=user, role=Role.OPERATOR, tenant=factories.tenant("c"))
    principal = principal_of_user(user)
    assert principal.tenant == "c"
    assert can(principal, Action.INFERENCE_USE)


def test_keys_by_prefix() -> None:
    key, _ = services.key_create(actor=SYSTEM, tenant=factories.tenant(), name="x", scopes=[Scope.MODELS])
    assert selectors.key_by_prefix(f"gk-{key.prefix}") == key
    assert selectors.key_by_prefix(key.prefix) == key
    assert selectors.key_by_prefix("gk-nothing") is None
