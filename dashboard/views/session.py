"""Signing in and out."""

from __future__ import annotations

from django.contrib.auth import login, logout
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render, resolve_url
from django.utils.http import url_has_allowed_host_and_scheme
from django.views.decorators.cache import never_cache
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_http_methods, require_POST

from dashboard.signin import SignInForm


def _destination(request: HttpRequest) -> str:
    """Where the reader wanted to go, if that is one of our pages."""
    wanted = request.POST.get("next") or request.GET.get("next") or ""
    safe = url_has_allowed_host_and_scheme(
        wanted, allowed_hosts={request.get_host()}, require_https=request.is_secure()
    )
    return wanted if safe else resolve_url("dashboard:overview")


@sensitive_post_parameters("password")
@never_cache
@require_http_methods(["GET", "POST"])
def sign_in(request: HttpRequest) -> HttpResponse:
    destination = _destination(request)
    if request.user.is_authenticated:
        return redirect(destination)
    form = SignInForm(request, request.POST if request.method == "POST" else None)
    if form.is_bound and form.is_valid() and form.user is not None:
        login(request, form.user)
        return redirect(destination)
    status = 200 if not form.is_bound else 429 if form.retry_after_s else 422
    response = render(request, "dashboard/sign_in.html", {"form": form, "next": destination}, status=status)
    if form.retry_after_s:
        response.headers["Retry-After"] = str(form.retry_after_s)
    return response


@require_POST
def sign_out(request: HttpRequest) -> HttpResponse:
    logout(request)
    return redirect("dashboard:login")
