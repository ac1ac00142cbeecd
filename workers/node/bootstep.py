"""The agent as a step of the Celery *worker* (not of its consumer): it survives every reconnect to the broker."""

from __future__ import annotations

from typing import Any

from celery import bootsteps

from controlplane.config import home, settings
from workers.node.agent import NodeAgent


class NodeAgentStep(bootsteps.StartStopStep):
    requires = ("celery.worker.components:Pool",)

    def create(self, worker: Any) -> NodeAgent:
        agent = NodeAgent(settings().node, home(), settings().redis_url)
        worker.app.node_agent = agent  # where the nudge task finds it
        return agent
