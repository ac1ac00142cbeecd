"""Valkey as the control plane uses it: clients that fail fast, and subscriptions that notice a silent server."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator
from typing import Any, Final

import redis

from workers.valkey import async_client, client

__all__ = ["SILENCE_S", "TURN_S", "async_client", "client", "follow", "follow_async"]

TURN_S: Final = 0.5
PING_EVERY_S: Final = 2.0
SILENCE_S: Final = 6.0
"""A server that answers no PING for so long is taken for gone: a half-open connection never breaks by itself."""


class _Watch:
    """When to ask, and whether the other side still answers."""

    def __init__(self) -> None:
        self._asked: float | None = None
        self._unanswered: float | None = None
        """When we first asked since the last message."""

    def to_ask(self) -> bool:
        now = time.monotonic()
        if self._asked is not None and now - self._asked < PING_EVERY_S:
            return False
        self._asked = now
        if self._unanswered is None:
            self._unanswered = now
        return True

    def note(self, message: Any) -> None:
        """Raises redis.ConnectionError past SILENCE_S."""
        if message is not None:
            self._unanswered = None
        elif self._unanswered is not None and time.monotonic() - self._unanswered > SILENCE_S:
            raise redis.ConnectionError(f"a subscription heard nothing for {SILENCE_S:.0f} s, not even an answer")


def follow(pubsub: Any) -> Iterator[dict[str, Any] | None]:
    """What comes on a subscription, for ever; None at least each TURN_S. Raises redis.RedisError where it is gone.

    Answers to our PING are among the messages, with their type `pong`.
    """
    watch = _Watch()
    while True:
        if watch.to_ask():
            pubsub.ping()
        message = pubsub.get_message(timeout=TURN_S)
        watch.note(message)
        yield message


async def follow_async(pubsub: Any) -> AsyncIterator[dict[str, Any] | None]:
    """The same for an event loop."""
    watch = _Watch()
    while True:
        if watch.to_ask():
            await pubsub.ping()
        message = await pubsub.get_message(timeout=TURN_S)
        watch.note(message)
        yield message
