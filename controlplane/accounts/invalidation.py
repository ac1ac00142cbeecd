"""Tells every process that a key changed: its hash on a Valkey channel."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, Final

import redis

from controlplane import valkey
from controlplane.accounts.keys import KeyHash
from controlplane.config import settings

CHANNEL: Final = "galley:keys"
SUBSCRIBE_DEADLINE_S: Final = 5.0

log = logging.getLogger(__name__)


@cache
def client() -> redis.Redis:
    """The client of this process."""
    return valkey.client(settings().redis_url)


TENANT: Final = "tenant:"
"""What a message starts with that names a tenant instead of a key."""


def publish(digest: KeyHash) -> None:
    """A key changed. Best effort: a process that cannot hear the channel trusts no cached key for over a second."""
    _publish(digest)


def publish_tenant(slug: str) -> None:
    """Something changed for every key of a tenant. Best effort, as `publish`."""
    _publish(TENANT + slug)


def _publish(message: str) -> None:
    try:
        client().publish(CHANNEL, message)
    except redis.RedisError as error:
        log.warning("a key change could not be announced (%s); caches that hear nothing ask within a second", error)


@contextmanager
def subscription(url: str | None = None) -> Iterator[Any]:
    """The channel, once the server has confirmed that we hear it. Raises redis.RedisError, also when it is silent."""
    with valkey.client(url or settings().redis_url) as connection:
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
