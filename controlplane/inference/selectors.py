"""Reads of this gateway process's own state, for the dashboard and for metrics. Nothing here blocks."""

from __future__ import annotations

from dataclasses import dataclass

from controlplane.inference.connection import Connection, ConnectionState
from controlplane.inference.runtime import current
from controlplane.inference.stats import GatewayStats
from workers.protocol import Role


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionView:
    """A worker as this gateway sees it, on its own connection."""

    worker: str
    epoch: int
    rank: int
    role: Role
    deployment: str
    revision: str
    state: ConnectionState
    reason: str
    """For a state that is not ready: what the worker waits for, or why it cannot be reached."""
    heard_age_s: float | None
    step_age_s: float | None
    requests: int
    """Of this gateway, running there now."""
    reconnects: int


async def connections() -> list[ConnectionView]:
    """By worker name."""
    gateway = await current()
    return [_view(gateway.connections[name]) for name in sorted(gateway.connections)]


def _view(connection: Connection) -> ConnectionView:
    heard = connection.connected
    return ConnectionView(
        worker=connection.worker,
        epoch=connection.address.epoch,
        rank=connection.address.rank,
        role=connection.role,
        deployment=connection.lease.deployment,
        revision=connection.revision,
        state=connection.state,
        reason=connection.error or (connection.status.reason if connection.status else ""),
        heard_age_s=connection.heard_age_s if heard else None,
        step_age_s=connection.step_age_s if heard else None,
        requests=connection.requests,
        reconnects=connection.reconnects,
    )


async def stats() -> GatewayStats:
    return (await current()).stats


async def loop_ages() -> dict[str, float]:
    """Seconds since each background loop last came round."""
    return {loop.name: loop.age_s for loop in (await current()).loops}
