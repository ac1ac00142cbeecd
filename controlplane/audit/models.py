"""What was changed, by whom and why. Rows are added and never change: a trigger in the database refuses the rest."""

from __future__ import annotations

from typing import Any, ClassVar, NoReturn

from django.core.serializers.json import DjangoJSONEncoder
from django.db import models
from django.utils import timezone


class AppendOnlyError(Exception):
    """The audit log is append-only; write a new event instead."""


class AuditQuerySet(models.QuerySet["AuditEvent"]):
    def update(self, **kwargs: Any) -> NoReturn:
        raise AppendOnlyError("audit events are never changed")

    def delete(self) -> NoReturn:
        raise AppendOnlyError("audit events are never deleted")


class AuditEvent(models.Model):
    """One change. Actors and targets are kept as text, so that an event outlives what it speaks of."""

    at = models.DateTimeField(default=timezone.now, editable=False, db_index=True)
    actor_kind = models.CharField(max_length=16)
    actor_id = models.CharField(max_length=64)
    actor_label = models.CharField(max_length=200)
    tenant = models.CharField(max_length=63, blank=True)
    """Slug of the tenant whose affair it was, or ""."""
    action = models.CharField(max_length=64, db_index=True)
    """`<entity>.<verb>`, for example `key.revoke`."""
    target = models.CharField(max_length=200, db_index=True)
    """`<entity>:<name>`, for example `deployment:smollm2`."""
    before = models.JSONField(null=True, blank=True, encoder=DjangoJSONEncoder)
    after = models.JSONField(null=True, blank=True, encoder=DjangoJSONEncoder)
    reason = models.TextField(blank=True)
    request_id = models.CharField(max_length=64, blank=True)

    objects: ClassVar[models.Manager[AuditEvent]] = models.Manager.from_queryset(AuditQuerySet)()

    class Meta:
        ordering = ("-id",)

    def __str__(self) -> str:
        return f"{self.actor_label} {self.action} {self.target}"

    def save(self, *args: Any, **kwargs: Any) -> None:
        if not self._state.adding:
            raise AppendOnlyError("audit events are never changed")
        super().save(*args, **kwargs)

    def delete(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise AppendOnlyError("audit events are never deleted")
