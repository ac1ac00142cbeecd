"""Tells every process that a key changed: its hash on a Valkey channel."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, Final

import redis

from controlplane.accounts.keys import KeyHash
from controlplane.config import settings

CHANNEL: Final = "galley:keys"
SUBSCRIBE_DEADLINE_S: Final = 5.0

log = logging.getLogger(__name__)


@cache
def client() -> redis.Redis:
    """A client of this process. Short deadlines: nobody who revokes a key waits for a server that is away."""
    return redis.Redis.from_url(settings().redis_url, socket_connect_timeout=2, socket_timeout=2)


def publish(digest: KeyHash) -> None:
    """Best effort: a process that cannot hear the channel trusts no cached key for longer than a second."""
    try:
        client().publish(CHANNEL, digest)
    except redis.RedisError as error:
        log.warning("a key change could not be announced (%s); caches that hear nothing ask within a second", error)


@contextmanager
def subscription() -> Iterator[Any]:
    """The channel, once the server has confirmed that we hear it. Raises redis.RedisError, also when it is silent."""
    with redis.Redis.from_url(
        settings().redis_url, socket_connect_timeout=2, socket_timeout=2, health_check_interval=5
    ) as connection:
        pubsub = connection.pubsub()
        try:
            pubsub.subscribe(CHANNEL)
            deadline = time.monotonic() + SUBSCRIBE_DEADLINE_S
            while (message := pubsub.get_message(timeout=0.5)) is None or message["type"] != "subscribe":
                if time.monotonic() > deadline:
                    raise redis.ConnectionError("no answer to SUBSCRIBE")
            yield pubsub
        finally:
            pubsub.close()
