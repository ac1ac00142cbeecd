"""What an agent says of itself once a second, in Valkey (msgpack; torch-free, Django-free)."""

from __future__ import annotations

from typing import Final

import msgspec

HEARTBEAT_PREFIX: Final = "galley:agent:"
HEARTBEAT_TTL_S: Final = 10


class AgentHeartbeat(msgspec.Struct, frozen=True, kw_only=True):
    node: str
    started_at: float
    """Unix seconds."""
    loop_age_s: float
    """Since processes were last compared with what is wanted."""
    fleet_age_s: float
    """Since the exchange with the database last began."""
    wanted_age_s: float | None
    """Age of the wanted state that is followed; None while it is the one kept on disk."""
    turns: int
    failures: int
    workers: int
    """Processes that run here."""


def heartbeat_key(node: str) -> str:
    return f"{HEARTBEAT_PREFIX}{node}"
