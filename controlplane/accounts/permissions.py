"""`can()`: the one function that everything asks, whoever asks for it."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final

from controlplane.accounts.limits import NO_LIMITS, Limits
from controlplane.accounts.models import APIKey, User
from controlplane.accounts.roles import CLUSTER_ACTIONS, ROLE_ACTIONS, SCOPE_ACTIONS, Action, Role, Scope

__all__ = [
    "SYSTEM", "Action", "Grant", "PermissionRefused", "Principal", "PrincipalKind", "Role", "Scope",
    "can", "principal_of_key", "principal_of_user", "require",
]  # fmt: skip

DEFAULT_TENANT: Final = "default"


class PermissionRefused(Exception):
    """The principal may not do this; the message names the action, never a secret."""


class PrincipalKind(enum.StrEnum):
    USER = "user"
    KEY = "key"
    SYSTEM = "system"
    """Galley itself: first run, reconciliation, commands on the host."""


@dataclass(frozen=True, slots=True)
class Grant:
    """A role in one tenant (its slug), or everywhere (None)."""

    role: Role
    tenant: str | None


@dataclass(frozen=True, slots=True)
class Principal:
    """Who asks. `tenant` is the tenant that the principal's own requests belong to (its slug)."""

    kind: PrincipalKind
    id: str
    label: str
    tenant: str | None = None
    roles: tuple[Grant, ...] = ()
    scopes: frozenset[Scope] = frozenset()
    limits: Limits = NO_LIMITS
    """Of the key."""
    tenant_limits: Limits = NO_LIMITS
    root_key: str = ""
    """The id of the first key of a row of rotations: what the key's limits count by."""


SYSTEM: Final = Principal(kind=PrincipalKind.SYSTEM, id="galley", label="galley")


def can(principal: Principal, action: Action, *, tenant: str | None = None) -> bool:
    """Whether `principal` may do `action`.

    Actions of the cluster need a role held everywhere, or a key with the scope; `tenant` does not matter. Actions of a
    tenant need a role there or everywhere, or a key *of that tenant* with the scope. Without `tenant` the
    principal's own is meant.
    """
    if principal.kind is PrincipalKind.SYSTEM:
        return True
    where = tenant if tenant is not None else principal.tenant
    whole_cluster = action in CLUSTER_ACTIONS
    if principal.kind is PrincipalKind.KEY:
        here = whole_cluster or (principal.tenant is not None and principal.tenant == where)
        return here and any(action in SCOPE_ACTIONS[scope] for scope in principal.scopes)
    return any(
        action in ROLE_ACTIONS[grant.role]
        and (grant.tenant is None or (not whole_cluster and where is not None and grant.tenant == where))
        for grant in principal.roles
    )


def require(principal: Principal, action: Action, *, tenant: str | None = None) -> None:
    """Raises PermissionRefused where `can()` says no."""
    if not can(principal, action, tenant=tenant):
        place = f" in tenant {tenant}" if tenant else ""
        raise PermissionRefused(f"{principal.label} may not {action}{place}")


def principal_of_user(user: User) -> Principal:
    """One query. Own requests (the playground) run in `default` with a role everywhere, else in the first tenant in
    which the user may infer, else in the first.
    """
    grants = tuple(
        Grant(role=Role(role), tenant=slug)
        for role, slug in user.memberships.order_by("tenant__slug", "role").values_list("role", "tenant__slug")
    )
    if not user.is_active:
        grants = ()
    where = [grant for grant in grants if grant.tenant is not None]
    tenants = [
        *(grant.tenant for grant in where if Action.INFERENCE_USE in ROLE_ACTIONS[grant.role]),
        *(grant.tenant for grant in where),
    ]
    everywhere = any(grant.tenant is None for grant in grants)
    return Principal(
        kind=PrincipalKind.USER,
        id=str(user.pk),
        label=user.username,
        tenant=DEFAULT_TENANT if everywhere else (tenants[0] if tenants else None),
        roles=grants,
    )


def principal_of_key(key: APIKey) -> Principal:
    """No query where `key.tenant` is loaded. Says nothing about whether the key is still good: ask the key cache."""
    return Principal(
        kind=PrincipalKind.KEY,
        id=str(key.pk),
        label=f"key gk-{key.prefix}",
        tenant=key.tenant.slug,
        scopes=frozenset(Scope(scope) for scope in key.scopes),
        limits=key.limits,
        tenant_limits=key.tenant.limits,
        root_key=str(key.root_key_id),
    )
