"""Tenants, users and principals for tests, made by the services that make the real ones."""

from __future__ import annotations

from itertools import count

from controlplane.accounts import services
from controlplane.accounts.models import Tenant, User
from controlplane.accounts.permissions import SYSTEM, Grant, Principal, PrincipalKind, Role, Scope, principal_of_user

_numbers = count(1)


def tenant(slug: str | None = None) -> Tenant:
    slug = slug or f"tenant-{next(_numbers)}"
    return services.tenant_create(actor=SYSTEM, slug=slug, name=slug.title())


def user(role: Role | None = None, *, tenant: Tenant | None = None, password: str | None = None) -> User:
    made, _ = services.user_create(actor=SYSTEM, username=f"user-{next(_numbers)}", password=password)
    if role is not None:
        services.membership_grant(actor=SYSTEM, user=made, role=role, tenant=tenant)
    return made


def principal(role: Role, *, tenant: Tenant | None = None) -> Principal:
    return principal_of_user(user(role, tenant=tenant))


def user_principal(*grants: tuple[Role, str | None], tenant: str | None = "default") -> Principal:
    """Without a database."""
    roles = tuple(Grant(role=role, tenant=where) for role, where in grants)
    return Principal(kind=PrincipalKind.USER, id="1", label="someone", tenant=tenant, roles=roles)


def key_principal(*scopes: Scope, tenant: str = "default") -> Principal:
    """Without a database."""
    return Principal(kind=PrincipalKind.KEY, id="1", label="key gk-x", tenant=tenant, scopes=frozenset(scopes))
