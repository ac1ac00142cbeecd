"""`GET /metrics`."""

from __future__ import annotations

import logging

import msgspec
import redis
from django.conf import settings as django_settings
from django.http import HttpRequest, HttpResponse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe
from prometheus_client import CONTENT_TYPE_LATEST

from controlplane.accounts.authentication import raw_key
from controlplane.accounts.keycache import authenticate_sync
from controlplane.accounts.permissions import Action, can
from controlplane.telemetry import selectors
from controlplane.telemetry.prometheus import exposition

log = logging.getLogger(__name__)


@require_safe
@never_cache
def metrics(request: HttpRequest) -> HttpResponse:
    """Prometheus text. With `GALLEY_METRICS_KEY=1`, an API key with the scope `management` is required."""
    if django_settings.METRICS_KEY_REQUIRED:
        raw = raw_key(request)
        principal = authenticate_sync(raw) if raw else None
        if principal is None:
            return HttpResponse("an API key is required\n", status=401, content_type="text/plain")
        if not can(principal, Action.TELEMETRY_VIEW):
            return HttpResponse("the key lacks the scope management\n", status=403, content_type="text/plain")
    try:
        state = selectors.metrics_state()
    except (redis.RedisError, msgspec.DecodeError) as error:
        log.warning("metrics without the telemetry process's part (%s)", error)
        state = None
    return HttpResponse(exposition(state), content_type=CONTENT_TYPE_LATEST)
