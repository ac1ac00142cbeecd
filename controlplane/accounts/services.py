"""The only writers of users and memberships; those of keys and tenants have modules of their own, named here too.

Each change and its audit event are one transaction.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import Final

from django.contrib.auth.password_validation import validate_password
from django.core.exceptions import ValidationError
from django.db import connection, transaction

from controlplane.accounts.granting import ScopeEscalation, require_grantable
from controlplane.accounts.key_services import key_create, key_revoke, key_rotate, key_set_limits, keys_touch
from controlplane.accounts.models import Membership, Tenant, User
from controlplane.accounts.permissions import DEFAULT_TENANT, SYSTEM, Action, Principal, Role, Scope, require
from controlplane.accounts.roles import CLUSTER_ACTIONS, ROLE_ACTIONS
from controlplane.accounts.tenant_services import tenant_create, tenant_delete, tenant_purged, tenant_set_limits
from controlplane.audit.services import record

__all__ = [
    "FirstRun", "ScopeEscalation", "bootstrap", "key_create", "key_revoke", "key_rotate", "key_set_limits",
    "keys_touch", "membership_grant", "membership_revoke", "password_reset", "tenant_create", "tenant_delete",
    "tenant_purged", "tenant_set_limits", "user_create", "user_set_active",
]  # fmt: skip

BOOTSTRAP_LOCK: Final = 0x6A11E001
"""PostgreSQL advisory lock: two first runs at once make one administrator."""


ADMINISTRATORS_LOCK: Final = 0x6A11E003
"""PostgreSQL advisory lock: two administrators who remove each other at once do not both succeed."""


@dataclass(frozen=True, slots=True)
class FirstRun:
    """Secrets of a fresh installation, in clear once and never again."""

    admin_user: str
    admin_password: str
    api_key: str


def _require_another_administrator(*, without: Membership | User) -> None:
    """Raises ValidationError where nobody could manage users any more once `without` is gone."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(%s)", [ADMINISTRATORS_LOCK])
    left = Membership.objects.filter(role=Role.ADMINISTRATOR, tenant=None, user__is_active=True)
    left = left.exclude(user=without) if isinstance(without, User) else left.exclude(pk=without.pk)
    if not left.exists():
        raise ValidationError("this is the last administrator; make another one first")


def _password() -> str:
    """About 119 random bits, without characters that are read as one another."""
    alphabet = "abcdefghijkmnpqrstuvwxyzABCDEFGHJKLMNPQRSTUVWXYZ23456789"
    return "-".join("".join(secrets.choice(alphabet) for _ in range(5)) for _ in range(4))


@transaction.atomic
def user_create(
    *, actor: Principal, username: str, password: str | None = None, display_name: str = ""
) -> tuple[User, str]:
    """A user without any role, and his password (made up where none is given). Raises ValidationError."""
    require(actor, Action.USERS_MANAGE)
    user = User(username=username, display_name=display_name)
    password = _set_password(user, password)
    user.full_clean()
    user.save()
    record(
        actor=actor,
        action="user.create",
        target=f"user:{username}",
        before=None,
        after={"display_name": display_name},
    )
    return user, password


def _set_password(user: User, password: str | None) -> str:
    if password is None:
        password = _password()
    else:
        validate_password(password, user)
    user.set_password(password)
    return password


@transaction.atomic
def password_reset(*, actor: Principal, user: User, password: str | None = None, reason: str = "") -> str:
    """Set a new password (made up where none is given) and return it. Sessions of the user end with the old one."""
    if not (actor.kind == "user" and actor.id == str(user.pk)):
        require(actor, Action.USERS_MANAGE)
    password = _set_password(user, password)
    user.full_clean()
    user.save(update_fields=["password"])
    record(
        actor=actor,
        action="user.password_reset",
        target=f"user:{user.username}",
        before=None,
        after=None,
        reason=reason,
    )
    return password


@transaction.atomic
def user_set_active(*, actor: Principal, user: User, active: bool, reason: str = "") -> None:
    """An inactive user cannot sign in and may do nothing. The keys he made belong to the tenant and stay.

    Raises ValidationError for the last administrator.
    """
    require(actor, Action.USERS_MANAGE)
    if not active and user.memberships.filter(role=Role.ADMINISTRATOR, tenant=None).exists():
        _require_another_administrator(without=user)
    before = {"is_active": user.is_active}
    user.is_active = active
    user.full_clean()
    user.save(update_fields=["is_active"])
    record(
        actor=actor,
        action="user.set_active",
        target=f"user:{user.username}",
        before=before,
        after={"is_active": active},
        reason=reason,
    )


@transaction.atomic
def membership_grant(
    *, actor: Principal, user: User, role: Role, tenant: Tenant | None, reason: str = ""
) -> Membership:
    """Give a role in one tenant, or everywhere. Raises ScopeEscalation where the actor holds less than that."""
    require(actor, Action.USERS_MANAGE)
    slug = tenant.slug if tenant else None
    actions = ROLE_ACTIONS[role] if tenant is None else ROLE_ACTIONS[role] - CLUSTER_ACTIONS
    require_grantable(actor, actions, tenant=slug, what=f"the role {role}")
    existing = Membership.objects.filter(user=user, role=role, tenant=tenant).first()
    if existing is not None:
        return existing
    membership = Membership(user=user, role=role, tenant=tenant)
    membership.full_clean()
    membership.save()
    record(
        actor=actor,
        action="membership.grant",
        target=f"user:{user.username}",
        before=None,
        after={"role": role, "tenant": slug},
        reason=reason,
        tenant=slug or "",
    )
    return membership


@transaction.atomic
def membership_revoke(*, actor: Principal, membership: Membership, reason: str = "") -> None:
    """Take a role back. Raises ValidationError for the last administrator's."""
    require(actor, Action.USERS_MANAGE)
    if membership.role == Role.ADMINISTRATOR and membership.tenant is None:
        _require_another_administrator(without=membership)
    slug = membership.tenant.slug if membership.tenant else None
    record(
        actor=actor,
        action="membership.revoke",
        target=f"user:{membership.user.username}",
        before={"role": membership.role, "tenant": slug},
        after=None,
        reason=reason,
        tenant=slug or "",
    )
    membership.delete()


@transaction.atomic
def bootstrap(*, admin_username: str = "admin") -> FirstRun | None:
    """First run: tenant `default`, an administrator, and a key for inference. None where there is a user already."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(%s)", [BOOTSTRAP_LOCK])
    tenant = Tenant.objects.filter(slug=DEFAULT_TENANT).first() or tenant_create(
        actor=SYSTEM, slug=DEFAULT_TENANT, name="Default"
    )
    if User.objects.exists():
        return None
    user, password = user_create(actor=SYSTEM, username=admin_username)
    membership_grant(actor=SYSTEM, user=user, role=Role.ADMINISTRATOR, tenant=None, reason="first run")
    _, raw = key_create(
        actor=SYSTEM, tenant=tenant, name="first run", scopes=[Scope.INFERENCE, Scope.MODELS], reason="first run"
    )
    return FirstRun(admin_user=user.username, admin_password=password, api_key=raw)
