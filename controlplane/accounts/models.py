"""Who may use Galley: users, tenants, their roles, and API keys. Written by `accounts.services` only."""

from __future__ import annotations

from typing import ClassVar

from django.contrib.auth.models import AbstractBaseUser, BaseUserManager
from django.contrib.auth.validators import UnicodeUsernameValidator
from django.contrib.postgres.fields import ArrayField
from django.core.exceptions import ValidationError
from django.db import models
from django.utils import timezone

from controlplane.accounts.limits import Limited
from controlplane.accounts.roles import Role, Scope


class Tenant(Limited):
    """A customer or a team: keys, usage and cached prefixes belong to one.

    A deleted tenant's row stays: its sums in the ledger keep their name, and nobody gets its slug (which the salt of
    its cached prefixes derives from) again.
    """

    slug = models.SlugField(max_length=63, unique=True)
    name = models.CharField(max_length=200)
    created_at = models.DateTimeField(default=timezone.now, editable=False)
    deleted_at = models.DateTimeField(null=True, blank=True, editable=False)
    purged_at = models.DateTimeField(null=True, blank=True, editable=False)
    """When store and pools were last told to drop a deleted tenant's blocks."""

    class Meta:
        ordering = ("slug",)

    def __str__(self) -> str:
        return self.slug


class UserManager(BaseUserManager["User"]):
    def create_user(self, username: str, password: str | None = None, **fields: object) -> User:
        """For Django's own machinery and tests; the application calls `accounts.services.user_create`."""
        user = self.model(username=self.model.normalize_username(username), **fields)
        user.set_password(password)
        user.full_clean()
        user.save(using=self._db)
        return user


class User(AbstractBaseUser):
    """A person who signs in. What they may do is in their memberships; there are no other permission flags."""

    username = models.CharField(max_length=150, unique=True, validators=[UnicodeUsernameValidator()])
    display_name = models.CharField(max_length=200, blank=True)
    is_active = models.BooleanField(default=True)
    created_at = models.DateTimeField(default=timezone.now, editable=False)

    objects: ClassVar[UserManager] = UserManager()

    USERNAME_FIELD = "username"
    REQUIRED_FIELDS: ClassVar[list[str]] = []

    class Meta:
        ordering = ("username",)

    def __str__(self) -> str:
        return self.username


class Membership(models.Model):
    """One role of one user: in one tenant, or, with no tenant, everywhere."""

    user = models.ForeignKey(User, on_delete=models.CASCADE, related_name="memberships")
    tenant = models.ForeignKey(Tenant, on_delete=models.CASCADE, null=True, blank=True, related_name="memberships")
    role = models.CharField(max_length=32, choices=Role.choices)

    class Meta:
        constraints: ClassVar = [
            models.UniqueConstraint(
                fields=["user", "tenant", "role"], nulls_distinct=False, name="accounts_membership_once"
            ),
            models.CheckConstraint(condition=models.Q(role__in=Role.values), name="accounts_membership_role"),
        ]

    def __str__(self) -> str:
        return f"{self.user} {self.role} {self.tenant or '*'}"


def validate_scopes(scopes: list[str]) -> None:
    unknown = sorted(set(scopes) - set(Scope.values))
    if unknown:
        raise ValidationError(f"unknown scope {', '.join(unknown)}; known are {', '.join(Scope.values)}")


class APIKey(Limited):
    """A key of a tenant. The key itself is shown once and not kept: only its prefix and its SHA-256."""

    tenant = models.ForeignKey(Tenant, on_delete=models.CASCADE, related_name="keys")
    name = models.CharField(max_length=100)
    prefix = models.CharField(max_length=8)
    key_hash = models.CharField(max_length=64, unique=True)
    scopes = ArrayField(models.CharField(max_length=32, choices=Scope.choices), validators=[validate_scopes])
    created_by = models.CharField(max_length=200)
    """Label of the principal: a user may go, what he made stays explained."""
    created_at = models.DateTimeField(default=timezone.now, editable=False)
    expires_at = models.DateTimeField(null=True, blank=True)
    revoked_at = models.DateTimeField(null=True, blank=True)
    last_used_at = models.DateTimeField(null=True, blank=True)
    """Written in batches, some seconds late."""
    root = models.ForeignKey("self", on_delete=models.SET_NULL, null=True, blank=True, related_name="rotations")
    """The first key of a row of rotations: what is limited, so that a rotation starts no new budget."""

    class Meta:
        ordering = ("-created_at", "-id")

    def __str__(self) -> str:
        return f"gk-{self.prefix}"

    @property
    def root_key_id(self) -> int:
        return self.root_id if self.root_id is not None else self.pk

    @property
    def state(self) -> str:
        """`active`, `expired` or `revoked`."""
        if self.revoked_at is not None:
            return "revoked"
        if self.expires_at is not None and self.expires_at <= timezone.now():
            return "expired"
        return "active"
