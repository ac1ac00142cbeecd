"""Tasks of a node's queue: nudges, nothing more. An engine never runs inside one."""

from __future__ import annotations

from typing import Any

from controlplane.celery import app


@app.task(name="workers.node.tasks.nudge", bind=True)
def nudge(self: Any) -> None:
    """Have this host's agent look at what is wanted now."""
    self.app.node_agent.nudge()
