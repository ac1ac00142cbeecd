"""The cache: what the store holds, where prompt tokens came from, what went and why."""

from __future__ import annotations

from dataclasses import dataclass

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from controlplane.accounts.permissions import Action, can
from controlplane.caching import overview, selectors
from controlplane.caching.models import StoreAlert
from controlplane.caching.store import enabled, store_settings
from dashboard.access import permission_required, principal_of, wants_partial
from dashboard.troubles import Meaning, meaning


@dataclass(frozen=True, slots=True)
class Notice:
    alert: StoreAlert
    meaning: Meaning


def _bound(total_bytes: int | None) -> int | None:
    """Bytes that the store may hold: the policy's total, or the installation's own bound where that is less."""
    bounds = [bound for bound in (total_bytes, store_settings().most_bytes) if bound is not None]
    return min(bounds, default=None)


@require_safe
@never_cache
@permission_required(Action.TELEMETRY_VIEW)
def show(request: HttpRequest) -> HttpResponse:
    contents, problem = overview.contents_or_problem()
    policy = selectors.current_policy()
    context = {
        "contents": contents,
        "problem": problem,
        "enabled": enabled(),
        "policy": policy,
        "bound": _bound(policy.total_bytes),
        "version": selectors.current_version(),
        "splits": overview.recent_splits.get(),
        "notices": [Notice(alert, meaning(alert.trouble)) for alert in selectors.open_alerts()],
        "past": [Notice(alert, meaning(alert.trouble)) for alert in selectors.past_alerts()[:5]],
        "may_manage": can(principal_of(request), Action.CACHE_MANAGE),
        "days": overview.DAYS,
    }
    template = "dashboard/partials/cache_body.html" if wants_partial(request) else "dashboard/cache.html"
    return render(request, template, context)
