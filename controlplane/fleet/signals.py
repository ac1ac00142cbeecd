"""Nudges sent when a change is committed. They only save time: periodic scans find the same work."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cache
from typing import Any

from django.db import transaction
from kombu import Connection
from kombu.exceptions import KombuError, OperationalError
from kombu.pools import producers

from controlplane.celery import app, node_queue

NODE_NUDGE_TASK = "workers.node.tasks.nudge"
RECONCILE_TASK = "controlplane.fleet.tasks.reconcile"
NUDGE_EXPIRES_S = 10
BROKER_WAIT_S = 1.0
"""For each of connecting and sending: somebody's request waits for it."""

IMPATIENT = {"socket_connect_timeout": BROKER_WAIT_S, "socket_timeout": BROKER_WAIT_S, "max_retries": 0}
"""Kombu by default waits for a silent broker for ever, and knocks at an absent one for seconds."""

log = logging.getLogger(__name__)


@cache
def _broker() -> Connection:
    return app.connection_for_write(transport_options=IMPATIENT)


def _send(name: str, **options: Any) -> None:
    try:
        with producers[_broker()].acquire(block=True, timeout=BROKER_WAIT_S) as producer:
            app.send_task(name, producer=producer, retry=False, expires=NUDGE_EXPIRES_S, ignore_result=True, **options)
    except (OperationalError, KombuError, OSError) as error:
        log.warning("no nudge for %s (%s); the next periodic scan does it", name, error)


def _on_commit(send: Callable[[], None]) -> None:
    transaction.on_commit(send, robust=True)


def nudge_node(name: str) -> None:
    """Have the agent of a node look at its wanted state now rather than in half a second."""
    _on_commit(lambda: _send(NODE_NUDGE_TASK, queue=node_queue(name)))


def run_soon(task: str) -> None:
    """Have the control queue run a periodic task now."""
    _on_commit(lambda: _send(task))


def reconcile_soon() -> None:
    run_soon(RECONCILE_TASK)
