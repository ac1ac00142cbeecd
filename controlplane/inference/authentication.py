"""Who calls the inference API: an API key, or a signed-in user of the dashboard with the CSRF header."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

from asgiref.sync import sync_to_async
from django.conf import settings
from django.contrib.auth import get_user
from django.contrib.sessions.middleware import SessionMiddleware
from django.db import DatabaseError
from django.http import HttpRequest, HttpResponse
from django.middleware.csrf import CsrfViewMiddleware

from controlplane.accounts.authentication import raw_key
from controlplane.accounts.keycache import authenticate
from controlplane.accounts.models import User
from controlplane.accounts.permissions import Action, Principal, can, principal_of_user
from controlplane.accounts.selectors import tenant_by_slug
from controlplane.caching import tickets
from controlplane.database import release_connections
from controlplane.inference.errors import ApiError, forbidden, unauthenticated

AUTHENTICATION_WAIT_S = 10.0


class _CsrfCheck(CsrfViewMiddleware):
    """Django's check, on demand: keys need none, sessions do."""

    def _reject(self, request: HttpRequest, reason: str) -> str:
        return reason


def _refused_by_csrf(request: HttpRequest) -> bool:
    check = _CsrfCheck(lambda _: HttpResponse())
    check.process_request(request)
    enforced: Any = lambda *args, **kwargs: None  # noqa: E731 - a view that is not exempt
    return check.process_view(request, enforced, (), {}) is not None


async def principal_of(request: HttpRequest) -> Principal:
    """Raises ApiError: 401 without key or session, 403 for a session without CSRF token, 503 without database."""
    if tickets.HEADER in request.headers:
        ticket = tickets.of(request.headers)
        if ticket is None:
            raise unauthenticated("The warming ticket does not hold, or has expired.")
        return ticket.principal
    key = raw_key(request)
    try:
        async with asyncio.timeout(AUTHENTICATION_WAIT_S):
            if key is not None:
                principal = await authenticate(key)
                if principal is None:
                    raise unauthenticated("Incorrect API key provided: it is unknown, expired or revoked.")
                return principal
            return await _session_principal(request)
    except (DatabaseError, TimeoutError) as error:
        raise ApiError(
            503, "The key cannot be checked at the moment.", type="api_error", code="unavailable", retry_after_s=2.0
        ) from error


async def _session_principal(request: HttpRequest) -> Principal:
    if settings.SESSION_COOKIE_NAME not in request.COOKIES:
        raise unauthenticated("No API key provided. Send it as `Authorization: Bearer gk-...`.")
    if not hasattr(request, "session"):  # outside Django's middleware
        SessionMiddleware(lambda _: HttpResponse()).process_request(request)
    principal = await sync_to_async(_signed_in)(request)
    if principal is None:
        raise unauthenticated("The session has ended. Sign in again, or send an API key.")
    if request.method not in ("GET", "HEAD", "OPTIONS") and _refused_by_csrf(request):
        raise forbidden("CSRF token missing or incorrect.")
    return principal


def _signed_in(request: HttpRequest) -> Principal | None:
    try:
        user = get_user(request)
        if not isinstance(user, User):
            return None
        principal = principal_of_user(user)
        tenant = tenant_by_slug(principal.tenant) if principal.tenant is not None else None
        return principal if tenant is None else replace(principal, tenant_limits=tenant.limits)
    finally:
        release_connections()


def require_any(principal: Principal, *actions: Action) -> None:
    """Raises ApiError (403) unless the principal may do one of `actions` in its own tenant."""
    if principal.tenant is None or not any(can(principal, action) for action in actions):
        raise forbidden(f"This {principal.kind} has no permission for {actions[0]}.")
