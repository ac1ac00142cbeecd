"""Nudges sent when a change is committed. They only save time: periodic scans find the same work."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from django.db import transaction
from kombu.exceptions import KombuError, OperationalError

from controlplane.celery import app, node_queue

NODE_NUDGE_TASK = "workers.node.tasks.nudge"
RECONCILE_TASK = "controlplane.fleet.tasks.reconcile"
NUDGE_EXPIRES_S = 10

log = logging.getLogger(__name__)


def _send(name: str, **options: Any) -> None:
    try:
        app.send_task(name, retry=False, expires=NUDGE_EXPIRES_S, ignore_result=True, **options)
    except (OperationalError, KombuError, OSError) as error:
        log.warning("no nudge for %s (%s); the next periodic scan does it", name, error)


def _on_commit(send: Callable[[], None]) -> None:
    transaction.on_commit(send, robust=True)


def nudge_node(name: str) -> None:
    """Have the agent of a node look at its wanted state now rather than in half a second."""
    _on_commit(lambda: _send(NODE_NUDGE_TASK, queue=node_queue(name)))


def reconcile_soon() -> None:
    _on_commit(lambda: _send(RECONCILE_TASK))
