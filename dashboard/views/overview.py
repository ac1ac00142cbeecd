"""The overview: what the installation does now and did in the last minutes."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from controlplane.accounts.permissions import Action, can
from controlplane.fleet import selectors as fleet
from dashboard.access import may_see_money, permission_required, principal_of
from dashboard.looks import worker_states


@require_safe
@permission_required(Action.TELEMETRY_VIEW)
def show(request: HttpRequest) -> HttpResponse:
    principal = principal_of(request)
    return render(
        request,
        "dashboard/overview.html",
        {
            "deployments": fleet.deployments(),
            "worker_states": worker_states(),
            "money": may_see_money(principal),
            "may_chat": can(principal, Action.INFERENCE_USE),
        },
    )
