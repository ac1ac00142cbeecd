"""The snapshot that heals a gap in the live feed, and longer windows for the charts."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.views.decorators.cache import never_cache
from django.views.decorators.gzip import gzip_page
from django.views.decorators.http import require_safe

from controlplane.accounts.permissions import Action
from controlplane.telemetry import selectors as telemetry
from dashboard.access import may_see_money, permission_required, principal_of
from dashboard.consumers import SNAPSHOT_S
from dashboard.payloads import trimmed

LONGEST_S = 3600


@require_safe
@never_cache
@gzip_page
@permission_required(Action.TELEMETRY_VIEW)
def snapshot(request: HttpRequest) -> HttpResponse:
    """`?seconds=` (1 to 3600): `{seq, frames}`."""
    asked = request.GET.get("seconds", str(SNAPSHOT_S))
    if not asked.isascii() or not asked.isdigit() or not 1 <= int(asked) <= LONGEST_S:
        return JsonResponse({"error": f"seconds is a whole number from 1 to {LONGEST_S}"}, status=400)
    frames = telemetry.snapshot(seconds=int(asked))
    return JsonResponse(trimmed(frames, money=may_see_money(principal_of(request))))
