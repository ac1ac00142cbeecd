"""What is done to the store's contents: purging, pinning, warming."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_POST

from controlplane.accounts import selectors as accounts
from controlplane.accounts.permissions import Action
from controlplane.caching import overview, selectors, services
from controlplane.caching.errors import CachingError
from controlplane.caching.prefixes import prefix_of
from controlplane.caching.prompts import MAX_FILE_BYTES, parse
from controlplane.caching.purging import Scope
from controlplane.fleet import selectors as fleet
from dashboard.access import permission_required, principal_of, wants_partial
from dashboard.views.panels import done, panel

JOBS_SHOWN = 20


@require_http_methods(["GET", "POST"])
@never_cache
@permission_required(Action.CACHE_MANAGE)
def purge(request: HttpRequest) -> HttpResponse:
    """A dialog: choose, type the name to confirm, say why."""
    sent = request.POST
    context: dict[str, Any] = {"scopes": _scopes(), "sent": sent, "refusal": ""}
    if request.method == "POST":
        kind, _, name = sent.get("scope", "").partition(":")
        if sent.get("confirmation", "").strip() != name or not name:
            context["refusal"] = f"Type {name or 'the name'} to confirm."
        else:
            try:
                context["report"] = services.purge(
                    actor=principal_of(request), scope=Scope(kind, name), reason=sent.get("reason", "")
                )
            except CachingError as error:
                context["refusal"] = str(error)
    return panel(request, "cache_purge", context, title="Cache", status=422 if context["refusal"] else 200)


def _scopes() -> list[tuple[str, list[tuple[str, str]]]]:
    """Groups of (value, label): what there is to purge."""
    contents, _ = overview.contents_or_problem()
    models = [(f"model:{owner.digest}", owner.name) for owner in contents.models] if contents else []
    return [
        ("Tenants", [(f"tenant:{tenant.slug}", tenant.slug) for tenant in accounts.tenants()]),
        ("Classes", [(f"class:{item.name}", item.name) for item in selectors.current_policy().classes]),
        ("Models", models),
    ]


@require_http_methods(["GET", "POST"])
@never_cache
@permission_required(Action.CACHE_MANAGE)
def warming(request: HttpRequest) -> HttpResponse:
    """Upload of a file of prompts, the jobs with their progress, and the pins."""
    if wants_partial(request) and request.method == "GET":
        return render(request, "dashboard/partials/cache_jobs.html", {"jobs": selectors.warm_jobs()[:JOBS_SHOWN]})
    refusal = ""
    if request.method == "POST":
        try:
            _warm(request)
            return redirect("dashboard:cache-warming")
        except CachingError as error:
            refusal = str(error)
    return _warming_page(request, refusal=refusal, title="Cache", status=422 if refusal else 200)


def _warm(request: HttpRequest) -> None:
    upload = request.FILES.get("file")
    # One byte more than is taken: a file that is too large is refused by its size, not cut.
    data = upload.read(MAX_FILE_BYTES + 1) if upload is not None else request.POST.get("prompts", "").encode()
    services.warm_create(
        actor=principal_of(request),
        model=request.POST.get("model", ""),
        tenant=request.POST.get("tenant", ""),
        retention_class=request.POST.get("class", ""),
        prompts=parse(data),
        pin=request.POST.get("pin", "").strip()[:100],
    )


@require_POST
@permission_required(Action.CACHE_MANAGE)
def warming_cancel(request: HttpRequest, job: int) -> HttpResponse:
    services.warm_cancel(actor=principal_of(request), job=job)
    if wants_partial(request):
        return render(request, "dashboard/partials/cache_jobs.html", {"jobs": selectors.warm_jobs()[:JOBS_SHOWN]})
    return redirect("dashboard:cache-warming")


@require_POST
@permission_required(Action.CACHE_MANAGE)
def pin(request: HttpRequest) -> HttpResponse:
    """Pin what every conversation with a system prompt begins with."""
    sent = request.POST
    try:
        prefix = prefix_of(
            model=sent.get("model", ""),
            tenant=sent.get("tenant", ""),
            messages=[{"role": "system", "content": sent.get("system", "")}],
        )
        services.pins_add(
            actor=principal_of(request),
            pins={sent.get("name", "").strip()[:100]: prefix.tip},
            reason=sent.get("reason", ""),
        )
    except CachingError as error:
        return _warming_page(request, pin_refusal=str(error), status=422)
    return redirect("dashboard:cache-warming")


@require_http_methods(["GET", "POST"])
@never_cache
@permission_required(Action.CACHE_MANAGE)
def unpin(request: HttpRequest, name: str) -> HttpResponse:
    refusal = ""
    if request.method == "POST":
        try:
            services.pin_remove(actor=principal_of(request), name=name, reason=request.POST.get("reason", ""))
        except CachingError as error:
            refusal = str(error)
        else:
            return done(request, "dashboard:cache-warming")
    return panel(
        request, "cache_unpin", {"name": name, "refusal": refusal}, title="Cache", status=422 if refusal else 200
    )


def _warming_page(request: HttpRequest, *, status: int, **more: Any) -> HttpResponse:
    policy = selectors.current_policy()
    context = {
        "jobs": selectors.warm_jobs()[:JOBS_SHOWN],
        "deployments": fleet.deployments(),
        "tenants": accounts.tenants(),
        "policy": policy,
        "sent": request.POST,
        **more,
    }
    return render(request, "dashboard/cache_warming.html", context, status=status)
