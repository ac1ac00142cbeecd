"""Bringing the policy in force to every process: the index holds it, lookups carry its version."""

from __future__ import annotations

import enum
import logging

from controlplane.caching import selectors
from controlplane.caching.store import index
from workers.kvstore import policy as codec
from workers.kvstore.index import IndexUnavailable

log = logging.getLogger(__name__)


class Published(enum.Enum):
    CURRENT = "current"
    AWAY = "away"
    """Valkey does not answer; the next look publishes it."""
    AHEAD = "ahead"
    """The index holds a newer version than the database: it was restored from a backup. The next save goes above."""


def publish_current() -> Published:
    """Make the newest version of the database the policy of all processes. Idempotent; never raises for Valkey."""
    policy = selectors.current_policy()
    body = codec.encode(policy)
    try:
        if index().publish_policy(policy.version, body):
            log.info("retention policy %d is published", policy.version)
            return Published.CURRENT
        held = index().policy()
    except IndexUnavailable as error:
        log.warning("retention policy %d waits for Valkey (%s)", policy.version, error)
        return Published.AWAY
    if held is not None and (held[0] > policy.version or held[1] != body):
        log.error(
            "the index holds retention policy %d, the database %d: save the policy again", held[0], policy.version
        )
        return Published.AHEAD
    return Published.CURRENT


def published_version() -> int:
    """Version that the index holds; 0 where there is none or Valkey is away."""
    try:
        held = index().policy()
    except IndexUnavailable:
        return 0
    return held[0] if held is not None else 0
