"""Who is looking, and whether they may: every page asks `can()` through here."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import cast

from django.contrib.auth.views import redirect_to_login
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase

from controlplane.accounts.models import User
from controlplane.accounts.permissions import Action, Principal, can, principal_of_user
from controlplane.metering.access import may_see_everyones

View = Callable[..., HttpResponseBase]


def wants_partial(request: HttpRequest) -> bool:
    """Whether htmx asks for a part of the page rather than the page."""
    return "HX-Request" in request.headers


def principal_of(request: HttpRequest) -> Principal:
    """The signed-in user as a principal; one query per request. Call it behind `permission_required` only."""
    cached = getattr(request, "galley_principal", None)
    if cached is None:
        cached = principal_of_user(cast(User, request.user))
        request.galley_principal = cached  # type: ignore[attr-defined]
    return cast(Principal, cached)


def may_see_money(principal: Principal) -> bool:
    """Cost and revenue of the whole installation."""
    return may_see_everyones(principal)


def sign_in_required(view: View) -> View:
    """Pages go to the sign-in page and come back; fetches and htmx get 401, and their script reloads the page."""

    @wraps(view)
    def guarded(request: HttpRequest, *args: object, **kwargs: object) -> HttpResponseBase:
        if request.user.is_authenticated:
            return view(request, *args, **kwargs)
        if wants_partial(request) or "text/html" not in request.headers.get("accept", "text/html"):
            return HttpResponse("Signed out", status=401, content_type="text/plain")
        return redirect_to_login(request.get_full_path())

    return guarded


def permission_required(action: Action) -> Callable[[View], View]:
    """Signed in, and `can(principal, action)`; otherwise the 403 page says which permission is missing."""

    def decorate(view: View) -> View:
        @wraps(view)
        def guarded(request: HttpRequest, *args: object, **kwargs: object) -> HttpResponseBase:
            if not can(principal_of(request), action):
                raise PermissionDenied(action.value)
            return view(request, *args, **kwargs)

        return sign_in_required(guarded)

    return decorate
