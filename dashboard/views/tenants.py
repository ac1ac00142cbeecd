"""Tenants: their limits, and their end."""

from __future__ import annotations

from django import forms
from django.core.exceptions import ValidationError
from django.core.validators import validate_slug
from django.db.models import Count, Q
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_safe

from controlplane.accounts import selectors, services
from controlplane.accounts.permissions import DEFAULT_TENANT, Action
from dashboard.access import permission_required, principal_of
from dashboard.views.panels import LimitsForm, done, panel

LIST = "dashboard:tenants"


class TenantForm(LimitsForm):
    slug = forms.CharField(label="Short name", max_length=63, validators=[validate_slug])
    name = forms.CharField(label="Name", max_length=200)
    field_order = ("slug", "name")


class DeleteForm(forms.Form):
    """Typing the name keeps a slip from ending a customer."""

    confirm = forms.CharField(label="Its short name, to confirm", max_length=63)
    reason = forms.CharField(label="Reason, for the audit log", max_length=500, required=False)


@require_safe
@never_cache
@permission_required(Action.TENANTS_MANAGE)
def index(request: HttpRequest) -> HttpResponse:
    found = selectors.tenants().annotate(active_keys=Count("keys", filter=Q(keys__revoked_at=None)))
    return render(request, "dashboard/tenants.html", {"tenants": found, "default": DEFAULT_TENANT})


@require_http_methods(["GET", "POST"])
@never_cache
@permission_required(Action.TENANTS_MANAGE)
def create(request: HttpRequest) -> HttpResponse:
    form = TenantForm(request.POST if request.method == "POST" else None)
    if form.is_bound and form.is_valid():
        try:
            services.tenant_create(
                actor=principal_of(request),
                slug=form.cleaned_data["slug"],
                name=form.cleaned_data["name"],
                limits=form.limits(),
            )
        except ValidationError as error:
            form.add_error(None, "; ".join(error.messages))
        else:
            return done(request, LIST)
    return _form(request, form, "New tenant", "Create tenant")


@require_http_methods(["GET", "POST"])
@never_cache
@permission_required(Action.TENANTS_MANAGE)
def limits(request: HttpRequest, slug: str) -> HttpResponse:
    tenant = get_object_or_404(selectors.tenants(), slug=slug)
    form = LimitsForm(request.POST if request.method == "POST" else None, initial=LimitsForm.initial_of(tenant.limits))
    if form.is_bound and form.is_valid():
        try:
            services.tenant_set_limits(actor=principal_of(request), tenant=tenant, limits=form.limits())
        except ValidationError as error:
            form.add_error(None, "; ".join(error.messages))
        else:
            return done(request, LIST)
    return _form(request, form, f"Limits of {tenant.slug}", "Save limits")


@require_http_methods(["GET", "POST"])
@never_cache
@permission_required(Action.TENANTS_MANAGE)
def delete(request: HttpRequest, slug: str) -> HttpResponse:
    tenant = get_object_or_404(selectors.tenants().exclude(slug=DEFAULT_TENANT), slug=slug)
    form = DeleteForm(request.POST if request.method == "POST" else None)
    if form.is_bound and form.is_valid():
        if form.cleaned_data["confirm"] == slug:
            services.tenant_delete(actor=principal_of(request), tenant=tenant, reason=form.cleaned_data["reason"])
            return done(request, LIST)
        form.add_error("confirm", f"Type {slug} to delete it.")
    note = (
        f"Its {tenant.keys.count()} keys stop working within a second, its cached prefixes go from the store and from "
        "every worker. What it used stays in the ledger. This cannot be undone."
    )
    return _form(request, form, f"Delete {tenant.slug}?", "Delete tenant", note=note, danger=True)


def _form(
    request: HttpRequest, form: forms.Form, title: str, submit: str, *, note: str = "", danger: bool = False
) -> HttpResponse:
    context = {"form": form, "title": title, "submit": submit, "note": note, "danger": danger, "back": LIST}
    return panel(request, "simple_form", context, status=422 if form.is_bound else 200)
