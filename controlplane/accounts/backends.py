"""Signing in with name and password, throttled; every way in goes through here."""

from __future__ import annotations

from typing import Any

from asgiref.sync import sync_to_async
from django.contrib.auth.backends import ModelBackend
from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.http import HttpRequest

from controlplane.accounts.models import User
from controlplane.accounts.permissions import principal_of_user
from controlplane.accounts.throttle import login_throttle
from controlplane.audit.services import record


def client_address(request: HttpRequest | None) -> str:
    """The client's address: the connection's, or what a trusted proxy says (`controlplane.asgi` sees to that)."""
    return "" if request is None else str(request.META.get("REMOTE_ADDR", ""))


class ThrottledBackend(ModelBackend):
    """Refuses with PermissionDenied (Django then tries nothing else) while the throttle says to wait."""

    def authenticate(
        self, request: HttpRequest | None, username: str | None = None, password: str | None = None, **kwargs: Any
    ) -> User | None:
        if username is None or password is None:
            return None
        address = client_address(request)
        throttle = login_throttle()
        if throttle.begin(username, address) > 0:
            raise PermissionDenied("too many failed attempts; wait and try again")
        try:
            user = super().authenticate(request, username=username, password=password)
        except Exception:
            throttle.withdrawn(username, address)
            raise
        if not isinstance(user, User):
            return None
        throttle.succeeded(username, address)
        with transaction.atomic():
            record(
                actor=principal_of_user(user),
                action="user.sign_in",
                target=f"user:{user.username}",
                before=None,
                after={"address": address},
            )
        return user

    async def aauthenticate(
        self, request: HttpRequest | None, username: str | None = None, password: str | None = None, **kwargs: Any
    ) -> User | None:
        return await sync_to_async(self.authenticate)(request, username=username, password=password, **kwargs)
