"""The agent as a step of the Celery *worker* (not of its consumer): it survives every reconnect to the broker."""

from __future__ import annotations

from typing import Any

from celery import bootsteps

from controlplane.config import GalleySettings, home, settings, store_settings
from workers.node.agent import NodeAgent
from workers.node.endpoints import NodeNetwork


class NodeAgentStep(bootsteps.StartStopStep):
    requires = ("celery.worker.components:Pool",)

    def create(self, worker: Any) -> NodeAgent:
        agent = NodeAgent(
            settings().node, home(), settings().redis_url, store=store_settings(), network=_network(settings())
        )
        worker.app.node_agent = agent  # where the nudge task finds it
        return agent


def _network(settings: GalleySettings) -> NodeNetwork:
    """Raises BadNetwork."""
    return NodeNetwork.of(
        listen=settings.worker_listen,
        ports=settings.worker_ports,
        advertise=settings.worker_advertise,
        security=settings.link_security,
        transfer=settings.worker_transfer,
    )
