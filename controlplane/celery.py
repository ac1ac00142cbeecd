"""The Celery application: the control queue, beat's schedule, and one node queue per host.

Tasks are short nudges; nothing runs an engine inside one (docs/decisions/0003).
"""

from __future__ import annotations

import os

from celery import Celery

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.settings")

from controlplane.config import settings as galley_settings

CONTROL_QUEUE = "control"


def node_queue(node: str) -> str:
    return f"node.{node}"


app = Celery("galley", broker=galley_settings().redis_url)
app.conf.update(
    task_default_queue=CONTROL_QUEUE,
    task_ignore_result=True,
    task_time_limit=60,
    task_soft_time_limit=50,
    broker_connection_retry_on_startup=True,
    worker_hijack_root_logger=False,
    worker_send_task_events=False,
    timezone="UTC",
    beat_schedule={
        "reconcile": {
            "task": "controlplane.fleet.tasks.reconcile",
            "schedule": 5.0,
            "options": {"expires": 5},
        },
        "roll-up-telemetry": {
            "task": "controlplane.telemetry.tasks.prune_rollups",
            "schedule": 3600.0,
            "options": {"expires": 600},
        },
    },
)
app.autodiscover_tasks()
