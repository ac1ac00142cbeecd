"""Reads of the audit log."""

from __future__ import annotations

from django.db.models import QuerySet

from controlplane.audit.models import AuditEvent


def events(
    *, action: str | None = None, target: str | None = None, actor: str | None = None, before_id: int | None = None
) -> QuerySet[AuditEvent]:
    """Newest first; slice it. `action` and `target` match by prefix, `actor` a label; `before_id` pages."""
    rows = AuditEvent.objects.all()
    if action:
        rows = rows.filter(action__startswith=action)
    if target:
        rows = rows.filter(target__startswith=target)
    if actor:
        rows = rows.filter(actor_label=actor)
    if before_id is not None:
        rows = rows.filter(id__lt=before_id)
    return rows.order_by("-id")
