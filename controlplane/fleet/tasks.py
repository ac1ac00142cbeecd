"""Celery tasks of the fleet: fetch, call a service, nothing else."""

from __future__ import annotations

from controlplane.celery import app
from controlplane.fleet.services import reconcile as reconcile_service


@app.task(name="controlplane.fleet.tasks.reconcile")
def reconcile() -> None:
    reconcile_service()
