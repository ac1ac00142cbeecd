"""Celery tasks of metering: call a service, nothing else."""

from __future__ import annotations

from functools import cache

import redis
from django.utils import timezone

from controlplane import valkey
from controlplane.celery import app
from controlplane.config import home, settings
from controlplane.metering import budgets, settling, worker_records


@cache
def _client() -> redis.Redis:
    return valkey.client(settings().redis_url)


@app.task(name="controlplane.metering.tasks.settle")
def settle() -> None:
    settling.settle_stream(_client())
    worker_records.take(_client())


@app.task(name="controlplane.metering.tasks.recover")
def recover() -> None:
    settling.settle_journals(_client(), home().journal)
    budgets.budgets_seed(_client(), now=timezone.now())


@app.task(name="controlplane.metering.tasks.prune")
def prune() -> None:
    worker_records.prune(now=timezone.now())
