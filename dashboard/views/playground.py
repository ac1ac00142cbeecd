"""The playground: a chat over the public API, for people who may use inference."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.csrf import ensure_csrf_cookie
from django.views.decorators.http import require_safe

from controlplane.accounts.permissions import Action
from controlplane.fleet import selectors as fleet
from controlplane.fleet.statuses import DeploymentState
from dashboard.access import permission_required


@require_safe
@ensure_csrf_cookie
@permission_required(Action.INFERENCE_USE)
def show(request: HttpRequest) -> HttpResponse:
    # The ready ones first: the first option is what the form starts with.
    deployments = sorted(fleet.deployments(), key=lambda d: (d.status is not DeploymentState.READY, d.name))
    return render(
        request,
        "dashboard/playground.html",
        {
            "deployments": deployments,
            "any_ready": any(d.status in (DeploymentState.READY, DeploymentState.DEGRADED) for d in deployments),
        },
    )
