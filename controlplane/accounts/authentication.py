"""How the management API (DRF) learns who asks: an API key in a header, or the browser's session."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from django.contrib.auth.models import AnonymousUser
from django.http import HttpRequest
from rest_framework.authentication import BaseAuthentication
from rest_framework.exceptions import AuthenticationFailed
from rest_framework.permissions import SAFE_METHODS, BasePermission
from rest_framework.request import Request

from controlplane.accounts.keycache import authenticate_sync
from controlplane.accounts.models import User
from controlplane.accounts.permissions import Action, Principal, can, principal_of_user


@dataclass(frozen=True, slots=True)
class KeyUser:
    """What `request.user` is when a key asks."""

    principal: Principal
    is_authenticated: bool = True
    is_active: bool = True
    is_anonymous: bool = False

    @property
    def pk(self) -> str:
        return f"key-{self.principal.id}"


def raw_key(request: HttpRequest | Request) -> str | None:
    """The key in `Authorization: Bearer` or `x-api-key`, or None. Never log it."""
    header = request.headers.get("authorization", "")
    scheme, _, value = header.partition(" ")
    if scheme.lower() == "bearer" and value.strip():
        return value.strip()
    return request.headers.get("x-api-key") or None


class KeyAuthentication(BaseAuthentication):
    """401 for a key that opens nothing; says nothing where no key is given, so that the session is asked next."""

    def authenticate(self, request: Request) -> tuple[KeyUser, None] | None:
        raw = raw_key(request)
        if raw is None:
            return None
        principal = authenticate_sync(raw)
        if principal is None:
            raise AuthenticationFailed("the API key is unknown, expired or revoked")
        return KeyUser(principal), None

    def authenticate_header(self, request: Request) -> str:
        return "Bearer"


def principal_of(request: HttpRequest | Request) -> Principal | None:
    """Who asks, for a view behind DRF's or Django's authentication. At most one query."""
    user: Any = request.user
    if isinstance(user, KeyUser):
        return user.principal
    if isinstance(user, User):
        return principal_of_user(user)
    assert isinstance(user, AnonymousUser)
    return None


class Allowed(BasePermission):
    """Asks `can()`: the view's `read_action` for safe methods, `write_action` for the others. Sets `view.principal`."""

    message: ClassVar[str] = "this key or user may not do that"

    def has_permission(self, request: Request, view: Any) -> bool:
        principal = principal_of(request)
        if principal is None:
            return False
        view.principal = principal
        action: Action = view.read_action if request.method in SAFE_METHODS else view.write_action
        return can(principal, action)
