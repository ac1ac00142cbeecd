"""The retention policy: edited with a preview before it is saved, its versions, and the way back to each."""

from __future__ import annotations

from typing import Any

from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_safe

from controlplane.accounts.models import APIKey
from controlplane.accounts.permissions import Action, can
from controlplane.caching import previews, selectors, services
from controlplane.caching.errors import CachingError, PolicyConflict, PolicyRefused, UnknownVersion
from controlplane.caching.previews import PolicyPreview
from dashboard.access import permission_required, principal_of, wants_partial
from dashboard.policy_form import KEEP, TOOLS, PolicyForm, digest
from dashboard.views.panels import panel

PAGE_SIZE = 20


@require_http_methods(["GET", "POST"])
@never_cache
@permission_required(Action.CACHE_MANAGE)
def edit(request: HttpRequest) -> HttpResponse:
    """POST with `action`: a row added or removed, `preview`, or `save` of what was previewed."""
    current = selectors.current_policy()
    if request.method == "GET":
        return _form(request, PolicyForm.of(current))
    form, action = PolicyForm.sent(request.POST), request.POST.get("action", "preview")
    if form.edit(action):
        return _form(request, form)
    draft = form.policy(current)
    if draft is None:
        return _form(request, form, status=422)
    preview = previews.policy_preview(draft)
    shown: dict[str, Any] = {"preview": preview, "digest": digest(draft), "reason": request.POST.get("reason", "")}
    if form.version != current.version:
        return _form(request, form, status=422, conflict=str(_conflict(form, current.version)), **shown)
    if action != "save":
        return _form(request, form, status=422 if preview.problems else 200, **shown)
    if request.POST.get("previewed") != shown["digest"]:
        return _form(request, form, status=422, changed=True, **shown)
    try:
        services.policy_save(
            actor=principal_of(request), draft=draft, expected_version=form.version, reason=shown["reason"]
        )
    except PolicyConflict as error:
        return _form(request, form, status=422, conflict=str(error), **shown)
    except PolicyRefused as error:
        return _form(request, form, status=422, refusal=str(error), **shown)
    return _gone(request, "dashboard:cache-history")


def _conflict(form: PolicyForm, current: int) -> PolicyConflict:
    return PolicyConflict(expected=form.version, current=current)


def _form(request: HttpRequest, form: PolicyForm, *, status: int = 200, **more: Any) -> HttpResponse:
    template = "dashboard/partials/cache_policy_form.html" if wants_partial(request) else "dashboard/cache_policy.html"
    context = {
        "form": form,
        "keep": KEEP,
        "tools": TOOLS,
        "keys": APIKey.objects.filter(revoked_at=None).select_related("tenant").order_by("tenant__slug", "name"),
        "next": form.version + 1,
        **more,
    }
    return render(request, template, context, status=status)


@require_safe
@never_cache
@permission_required(Action.TELEMETRY_VIEW)
def history(request: HttpRequest) -> HttpResponse:
    before = request.GET.get("before", "")
    rows = selectors.versions()
    if before.isascii() and before.isdigit():
        rows = rows.filter(number__lt=int(before))
    found = list(rows[: PAGE_SIZE + 1])
    shown = found[:PAGE_SIZE]
    changed = selectors.version_changes(shown)
    current = selectors.current_version()
    context = {
        "versions": [(row, changed[row.number]) for row in shown],
        "current": current.number if current else 0,
        "older": shown[-1].number if len(found) > PAGE_SIZE else None,
        "may_manage": can(principal_of(request), Action.CACHE_MANAGE),
    }
    return render(request, "dashboard/cache_history.html", context)


@require_http_methods(["GET", "POST"])
@never_cache
@permission_required(Action.CACHE_MANAGE)
def rollback(request: HttpRequest, number: int) -> HttpResponse:
    """A dialog that says what going back would do, and does it."""
    try:
        row = selectors.version(number)
    except UnknownVersion as error:
        raise Http404(str(error)) from error
    preview = previews.policy_preview(selectors.policy_of(row))
    refusal, status = "", 200
    if request.method == "POST":
        try:
            services.policy_rollback(
                actor=principal_of(request),
                number=number,
                expected_version=_expected(request, preview),
                reason=request.POST.get("reason", ""),
            )
            return _gone(request, "dashboard:cache-history")
        except CachingError as error:
            refusal, status = str(error), 422
    context = {"row": row, "preview": preview, "refusal": refusal, "reason": request.POST.get("reason", "")}
    return panel(request, "cache_rollback", context, title="Cache", status=status)


def _expected(request: HttpRequest, preview: PolicyPreview) -> int:
    sent = request.POST.get("version", "")
    return int(sent) if sent.isascii() and sent.isdigit() else preview.base_version


def _gone(request: HttpRequest, name: str) -> HttpResponse:
    if wants_partial(request):
        return HttpResponse(status=204, headers={"HX-Redirect": reverse(name)})
    return redirect(name)
