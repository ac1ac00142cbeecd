"""Celery tasks of caching: fetch, call a service, nothing else."""

from __future__ import annotations

from django.utils import timezone

from controlplane.caching import observing, services
from controlplane.caching.publication import Published, publish_current
from controlplane.caching.store import enabled
from controlplane.caching.tending import tender
from controlplane.celery import app


@app.task(name="controlplane.caching.tasks.tend")
def tend() -> None:
    """Publish what was not heard, look at the store, sweep it, and let alerts say how it is."""
    published = publish_current()
    troubles = tender().tend() if enabled() else {}
    services.alerts_observe(
        observed=observing.everything(troubles, ahead=published is Published.AHEAD), now=timezone.now()
    )


@app.task(name="controlplane.caching.tasks.warm")
def warm() -> None:
    """One slice of the oldest warming job, and the next slice if there is more to do."""
    job = services.warm_claim()
    if job is not None:
        services.warm_advance(job)
        warm.apply_async(expires=60)


@app.task(name="controlplane.caching.tasks.prune")
def prune() -> None:
    services.alerts_prune(now=timezone.now())
