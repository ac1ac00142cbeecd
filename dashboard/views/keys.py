"""API keys: list, create (shown once), revoke."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django import forms
from django.core.exceptions import PermissionDenied, ValidationError
from django.core.paginator import Paginator
from django.db.models import Q
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.utils import timezone
from django.views.decorators.cache import never_cache
from django.views.decorators.debug import sensitive_variables
from django.views.decorators.http import require_http_methods, require_safe

from controlplane.accounts import selectors, services
from controlplane.accounts.models import APIKey, Tenant
from controlplane.accounts.permissions import Action, PermissionRefused, Principal, Scope, can
from dashboard.access import principal_of, sign_in_required, wants_partial
from dashboard.views.panels import LimitsForm, done, panel

PAGE_SIZE = 50
LIFETIMES = [("", "Never"), ("30", "In 30 days"), ("90", "In 90 days"), ("365", "In a year")]

SCOPE_HELP = {
    Scope.INFERENCE: "Chat and complete with the tenant's models",
    Scope.MODELS: "List the models that are served",
    Scope.TENANT: "Read and manage the tenant's keys, see its usage",
    Scope.MANAGEMENT: "Deploy, scale and configure the whole installation",
}


def _tenants(principal: Principal, action: Action) -> list[Tenant]:
    """Tenants in which the principal may do `action`; none of them is a 403."""
    found = [tenant for tenant in selectors.tenants() if can(principal, action, tenant=tenant.slug)]
    if not found:
        raise PermissionDenied(action.value)
    return found


class KeyForm(forms.Form):
    tenant = forms.ChoiceField(label="Tenant")
    name = forms.CharField(label="Name", max_length=100)
    scopes = forms.MultipleChoiceField(label="Scopes", choices=Scope.choices)
    lifetime = forms.ChoiceField(label="Expires", choices=LIFETIMES, required=False)

    def __init__(self, tenants: list[Tenant], data: Any = None) -> None:
        super().__init__(data, initial={"scopes": [Scope.INFERENCE.value, Scope.MODELS.value], "lifetime": ""})
        self.tenants = {tenant.slug: tenant for tenant in tenants}
        field = self.fields["tenant"]
        assert isinstance(field, forms.ChoiceField)
        field.choices = [(tenant.slug, tenant.name) for tenant in tenants]

    def scope_choices(self) -> list[tuple[str, str, str, bool]]:
        """(value, label, help, checked) for the template."""
        chosen = self["scopes"].value() or []
        return [(scope.value, str(scope.label), SCOPE_HELP[scope], scope.value in chosen) for scope in Scope]


class RotateForm(forms.Form):
    overlap_hours = forms.FloatField(label="Overlap, hours", min_value=0, max_value=24 * 90, initial=24)


@require_safe
@never_cache
@sign_in_required
def index(request: HttpRequest) -> HttpResponse:
    principal = principal_of(request)
    tenants = _tenants(principal, Action.KEYS_VIEW)
    query = request.GET.get("q", "").strip()
    keys = selectors.api_keys().filter(tenant__in=tenants)
    if query:
        keys = keys.filter(
            Q(name__icontains=query)
            | Q(prefix__startswith=query.removeprefix("gk-"))
            | Q(tenant__slug__startswith=query)
        )
    page = Paginator(keys, PAGE_SIZE).get_page(request.GET.get("page"))
    manageable = {tenant.slug for tenant in tenants if can(principal, Action.KEYS_MANAGE, tenant=tenant.slug)}
    sees_tenants = can(principal, Action.TENANTS_MANAGE)
    template = "dashboard/partials/key_list.html" if wants_partial(request) else "dashboard/keys.html"
    return render(
        request, template, {"page": page, "query": query, "manageable": manageable, "sees_tenants": sees_tenants}
    )


@sensitive_variables("raw")
@require_http_methods(["GET", "POST"])
@never_cache
@sign_in_required
def create(request: HttpRequest) -> HttpResponse:
    principal = principal_of(request)
    form = KeyForm(_tenants(principal, Action.KEYS_MANAGE), request.POST if request.method == "POST" else None)
    if form.is_bound and form.is_valid():
        lifetime = form.cleaned_data["lifetime"]
        try:
            key, raw = services.key_create(
                actor=principal,
                tenant=form.tenants[form.cleaned_data["tenant"]],
                name=form.cleaned_data["name"],
                scopes=form.cleaned_data["scopes"],
                expires_at=timezone.now() + timedelta(days=int(lifetime)) if lifetime else None,
            )
        except PermissionRefused as error:
            form.add_error("scopes", str(error))
        except ValidationError as error:
            form.add_error(None, error)
        else:
            # Rendered, not redirected to: the key is in this one response and nowhere else.
            return panel(request, "key_created", {"key": key, "raw": raw})
    return panel(request, "key_form", {"form": form}, status=422 if form.is_bound else 200)


@require_http_methods(["GET", "POST"])
@never_cache
@sign_in_required
def revoke(request: HttpRequest, key_id: int) -> HttpResponse:
    principal = principal_of(request)
    tenants = _tenants(principal, Action.KEYS_MANAGE)
    key = get_object_or_404(selectors.api_keys().filter(tenant__in=tenants), pk=key_id)
    if request.method == "GET":
        return panel(request, "key_revoke", {"key": key})
    services.key_revoke(actor=principal, key=key, reason=request.POST.get("reason", "").strip()[:500])
    if wants_partial(request):
        return HttpResponse(status=204, headers={"HX-Refresh": "true"})
    return redirect("dashboard:keys")


@sensitive_variables("raw")
@require_http_methods(["GET", "POST"])
@never_cache
@sign_in_required
def rotate(request: HttpRequest, key_id: int) -> HttpResponse:
    principal = principal_of(request)
    key = _manageable(principal, key_id)
    form = RotateForm(request.POST if request.method == "POST" else None)
    if form.is_bound and form.is_valid():
        overlap = timedelta(hours=form.cleaned_data["overlap_hours"])
        try:
            new, raw = services.key_rotate(actor=principal, key=key, overlap=overlap)
        except (PermissionRefused, ValidationError) as error:
            form.add_error(None, str(error) if isinstance(error, PermissionRefused) else "; ".join(error.messages))
        else:
            return panel(request, "key_created", {"key": new, "raw": raw})
    note = "A new key with the same scopes and limits; the old one works on until the overlap is over."
    return _simple(request, form, f"Rotate “{key.name}”", "Make the new key", note)


@require_http_methods(["GET", "POST"])
@never_cache
@sign_in_required
def limits(request: HttpRequest, key_id: int) -> HttpResponse:
    principal = principal_of(request)
    key = _manageable(principal, key_id)
    form = LimitsForm(request.POST if request.method == "POST" else None, initial=LimitsForm.initial_of(key.limits))
    if form.is_bound and form.is_valid():
        try:
            services.key_set_limits(actor=principal, key=key, limits=form.limits())
        except ValidationError as error:
            form.add_error(None, "; ".join(error.messages))
        else:
            return done(request, "dashboard:keys")
    note = "Empty is no limit. The tenant's own limits apply as well."
    return _simple(request, form, f"Limits of “{key.name}”", "Save limits", note)


def _manageable(principal: Principal, key_id: int) -> APIKey:
    tenants = _tenants(principal, Action.KEYS_MANAGE)
    return get_object_or_404(selectors.api_keys().filter(tenant__in=tenants), pk=key_id)


def _simple(request: HttpRequest, form: forms.Form, title: str, submit: str, note: str) -> HttpResponse:
    context = {"form": form, "title": title, "submit": submit, "note": note, "back": "dashboard:keys"}
    return panel(request, "simple_form", context, status=422 if form.is_bound else 200)
