from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.accounts.permissions import SYSTEM, Action, PermissionRefused, Role, Scope, can, require
from controlplane.accounts.roles import CLUSTER_ACTIONS, ROLE_ACTIONS, SCOPE_ACTIONS
from tests.controlplane.accounts.factories import key_principal, user_principal


@pytest.mark.parametrize(
    ("role", "allowed", "refused"),
    [
        (Role.VIEWER, Action.FLEET_VIEW, Action.FLEET_OPERATE),
        (Role.VIEWER, Action.TELEMETRY_VIEW, Action.COSTS_VIEW),
        (Role.OPERATOR, Action.FLEET_OPERATE, Action.KEYS_MANAGE),
        (Role.OPERATOR, Action.INFERENCE_USE, Action.CACHE_MANAGE),
        (Role.CACHE_ADMINISTRATOR, Action.CACHE_MANAGE, Action.FLEET_OPERATE),
        (Role.BILLING, Action.PRICES_MANAGE, Action.INFERENCE_USE),
        (Role.BILLING, Action.COSTS_VIEW, Action.USERS_MANAGE),
    ],
)
def test_what_roles_may(role: Role, allowed: Action, refused: Action) -> None:
    principal = user_principal((role, None))
    assert can(principal, allowed)
    assert not can(principal, refused)


@pytest.mark.parametrize("action", list(Action))
def test_an_administrator_and_the_system_may_everything_and_nobody_without_a_role_anything(action: Action) -> None:
    assert can(user_principal((Role.ADMINISTRATOR, None)), action, tenant="any")
    assert can(SYSTEM, action, tenant="any")
    assert not can(user_principal(), action)
    assert not can(key_principal(), action)


@pytest.mark.parametrize("action", sorted(CLUSTER_ACTIONS))
def test_an_administrator_of_one_tenant_has_no_say_over_the_cluster(action: Action) -> None:
    assert not can(user_principal((Role.ADMINISTRATOR, "acme"), tenant="acme"), action)
    assert not can(user_principal((Role.ADMINISTRATOR, "acme"), tenant="acme"), action, tenant="acme")


def test_a_role_in_one_tenant_ends_at_its_border() -> None:
    principal = user_principal((Role.ADMINISTRATOR, "acme"), tenant="acme")
    assert can(principal, Action.KEYS_MANAGE)
    assert can(principal, Action.KEYS_MANAGE, tenant="acme")
    assert not can(principal, Action.KEYS_MANAGE, tenant="other")


def test_a_key_is_of_its_tenant() -> None:
    key = key_principal(Scope.INFERENCE, tenant="acme")
    assert can(key, Action.INFERENCE_USE)
    assert not can(key, Action.INFERENCE_USE, tenant="other")
    assert not can(key, Action.MODELS_VIEW)


def test_only_the_management_scope_reaches_the_cluster() -> None:
    assert can(key_principal(Scope.MANAGEMENT), Action.FLEET_OPERATE)
    assert not can(key_principal(Scope.INFERENCE, Scope.MODELS, Scope.TENANT), Action.FLEET_VIEW)


def test_no_scope_makes_users() -> None:
    assert not can(key_principal(*Scope), Action.USERS_MANAGE)
    assert not can(key_principal(*Scope), Action.AUDIT_VIEW)


def test_require_names_the_action() -> None:
    with pytest.raises(PermissionRefused, match=r"fleet\.operate"):
        require(user_principal((Role.VIEWER, None)), Action.FLEET_OPERATE)


@given(st.sampled_from(list(Action)), st.sets(st.sampled_from(list(Role))), st.sampled_from(["acme", "other", None]))
def test_roles_add_up_and_nothing_else_does(action: Action, roles: set[Role], tenant: str | None) -> None:
    principal = user_principal(*((role, None) for role in roles))
    assert can(principal, action, tenant=tenant) == any(action in ROLE_ACTIONS[role] for role in roles)


def test_the_tables_are_complete() -> None:
    assert set(ROLE_ACTIONS) == set(Role)
    assert set(SCOPE_ACTIONS) == set(Scope)
