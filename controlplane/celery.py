"""The Celery application: the control queue, beat's schedule, and one node queue per host.

Tasks are short nudges; nothing runs an engine inside one (docs/decisions/0003).
"""

from __future__ import annotations

import os

from celery import Celery
from celery.signals import worker_init

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.settings")

from controlplane.config import settings as galley_settings

CONTROL_QUEUE = "control"
BROKER_SILENCE_S = 5.0
"""A broker that says nothing for so long is taken for gone: a connection whose other end is lost never breaks."""
STATEMENT_TIMEOUT_S = 30.0
"""Of one statement in PostgreSQL, lock waits included. Celery's time limits do nothing in a pool of threads."""


def node_queue(node: str) -> str:
    return f"node.{node}"


app = Celery("galley", broker=galley_settings().redis_url)
app.conf.update(
    task_default_queue=CONTROL_QUEUE,
    task_ignore_result=True,
    broker_connection_retry_on_startup=True,
    broker_connection_max_retries=None,  # a broker that is away for a day must not end worker, beat or agent
    broker_transport_options={
        "socket_connect_timeout": BROKER_SILENCE_S,
        "socket_timeout": BROKER_SILENCE_S,
        "socket_keepalive": True,
        "health_check_interval": 10,
    },
    worker_hijack_root_logger=False,
    worker_send_task_events=False,
    timezone="UTC",
    beat_schedule={
        "reconcile": {
            "task": "controlplane.fleet.tasks.reconcile",
            "schedule": 5.0,
            "options": {"expires": 5},
        },
        "tend-store": {
            "task": "controlplane.caching.tasks.tend",
            "schedule": 10.0,
            "options": {"expires": 10},
        },
        "warm-store": {
            "task": "controlplane.caching.tasks.warm",
            "schedule": 15.0,
            "options": {"expires": 15},
        },
        "prune-store-alerts": {
            "task": "controlplane.caching.tasks.prune",
            "schedule": 86_400.0,
            "options": {"expires": 3600},
        },
        "settle-usage": {
            "task": "controlplane.metering.tasks.settle",
            "schedule": 2.0,
            "options": {"expires": 2},
        },
        "recover-usage": {
            "task": "controlplane.metering.tasks.recover",
            "schedule": 10.0,
            "options": {"expires": 10},
        },
        "prune-worker-records": {
            "task": "controlplane.metering.tasks.prune",
            "schedule": 86_400.0,
            "options": {"expires": 3600},
        },
        "purge-deleted-tenants": {
            "task": "controlplane.accounts.tasks.purge_deleted_tenants",
            "schedule": 10.0,
            "options": {"expires": 10},
        },
        "roll-up-telemetry": {
            "task": "controlplane.telemetry.tasks.prune_rollups",
            "schedule": 3600.0,
            "options": {"expires": 600},
        },
    },
)
app.autodiscover_tasks()


@worker_init.connect
def bound_statements(**kwargs: object) -> None:
    """In a Celery worker no statement runs for ever: a task's thread, and the node agent, come back from any wait."""
    from django.db import connections

    options = connections.settings["default"]["OPTIONS"]  # before the first connection is made
    options["options"] = f"{options.get('options', '')} -c statement_timeout={STATEMENT_TIMEOUT_S * 1000:.0f}".strip()
