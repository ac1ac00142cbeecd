"""The only writers of store alerts: what observers see now, against what was open before."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Final

from django.db import transaction

from controlplane.caching.models import StoreAlert

KEPT: Final = timedelta(days=90)
POLICY_AHEAD: Final = "policy_ahead"
"""The index holds a newer policy than the database."""

Observations = Mapping[str, Mapping[str, str]]
"""Observer to (trouble to reason). Who reports nothing has nothing to complain of."""


@transaction.atomic
def alerts_observe(*, observed: Observations, now: datetime) -> int:
    """Open, keep and close alerts so that those open are exactly what is observed. Idempotent. Returns how many are."""
    open_now = {(a.source, a.trouble): a for a in StoreAlert.objects.select_for_update().filter(cleared_at=None)}
    seen = {(source, trouble): reason for source, found in observed.items() for trouble, reason in found.items()}
    for key, reason in seen.items():
        alert = open_now.pop(key, None)
        if alert is None:
            alert = StoreAlert(source=key[0], trouble=key[1], since=now)
        alert.reason, alert.seen_at = reason, now
        alert.full_clean(validate_constraints=False)
        alert.save()
    for alert in open_now.values():
        alert.cleared_at = now
        alert.save(update_fields=["cleared_at"])
    return len(seen)


def alerts_prune(*, now: datetime) -> int:
    """Forget what was cleared long ago."""
    return StoreAlert.objects.filter(cleared_at__lt=now - KEPT).delete()[0]
