"""Celery tasks of telemetry: call a service, nothing else."""

from __future__ import annotations

from django.utils import timezone

from controlplane.celery import app
from controlplane.telemetry import services


@app.task(name="controlplane.telemetry.tasks.prune_rollups")
def prune_rollups() -> None:
    now = timezone.now()
    services.rollups_condense(now=now)  # first, so that nothing goes before it is rolled up
    services.rollups_prune(now=now)
