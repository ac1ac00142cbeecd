"""Retention policies by version, what ails the store, and warming. Written by the services of this app only."""

from __future__ import annotations

from typing import ClassVar

from django.core.serializers.json import DjangoJSONEncoder
from django.core.validators import MinValueValidator
from django.db import models
from django.utils import timezone


class PolicyVersion(models.Model):
    """One retention policy as a whole, never changed: the highest number is in force, each older one a way back."""

    number = models.PositiveIntegerField(unique=True, validators=[MinValueValidator(1)])
    body = models.JSONField(encoder=DjangoJSONEncoder)
    """`workers.kvstore.policy.RetentionPolicy`; its `version` is `number`."""
    created_at = models.DateTimeField(default=timezone.now, editable=False)
    created_by = models.CharField(max_length=200)
    """Label of the principal."""
    reason = models.TextField()
    restores = models.PositiveIntegerField(null=True, blank=True)
    """Number of the version that this one brought back."""

    class Meta:
        ordering = ("-number",)

    def __str__(self) -> str:
        return f"retention policy {self.number}"


class StoreAlert(models.Model):
    """One trouble that one observer saw, from `since` until `cleared_at`."""

    source = models.CharField(max_length=100)
    """`control` (the control worker's own look), or a worker's name."""
    trouble = models.CharField(max_length=32)
    """`workers.kvstore.health.Trouble`, or one of the control plane's own."""
    reason = models.TextField(blank=True)
    since = models.DateTimeField(default=timezone.now)
    seen_at = models.DateTimeField(default=timezone.now)
    cleared_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ("-since", "-id")
        constraints: ClassVar = [
            models.UniqueConstraint(
                fields=["source", "trouble"], condition=models.Q(cleared_at=None), name="caching_alert_open_once"
            )
        ]

    def __str__(self) -> str:
        return f"{self.trouble} at {self.source}"


class WarmState(models.TextChoices):
    QUEUED = "queued", "Queued"
    RUNNING = "running", "Running"
    DONE = "done", "Done"
    FAILED = "failed", "Failed"
    CANCELLED = "cancelled", "Cancelled"


FINAL_WARM_STATES = (WarmState.DONE, WarmState.FAILED, WarmState.CANCELLED)


class WarmJob(models.Model):
    """Prompts that are sent through prefill so that their prefixes lie in the store before somebody needs them."""

    state = models.CharField(max_length=16, choices=WarmState.choices, default=WarmState.QUEUED)
    note = models.TextField(blank=True)
    """Why it is in this state."""
    model = models.CharField(max_length=200)
    """As clients name it."""
    tenant = models.CharField(max_length=63)
    retention_class = models.CharField(max_length=64)
    pin = models.CharField(max_length=100, blank=True)
    """Pin what was warmed under this name; empty: it ages like everything else."""
    prompts = models.JSONField()
    """Lists of messages; emptied when the job ends."""
    total = models.PositiveIntegerField()
    done = models.PositiveIntegerField(default=0)
    failed = models.PositiveIntegerField(default=0)
    prompt_tokens = models.PositiveBigIntegerField(default=0)
    hit_tokens = models.PositiveBigIntegerField(default=0)
    created_at = models.DateTimeField(default=timezone.now, editable=False)
    created_by = models.CharField(max_length=200)
    finished_at = models.DateTimeField(null=True, blank=True)
    claimed_until = models.DateTimeField(null=True, blank=True)
    """One process at a time works on it, and another goes on when that one has died."""

    class Meta:
        ordering = ("-id",)

    def __str__(self) -> str:
        return f"warming job {self.pk}"

    @property
    def share(self) -> float:
        return (self.done + self.failed) / self.total if self.total else 1.0

    @property
    def ended(self) -> bool:
        return self.state in FINAL_WARM_STATES
