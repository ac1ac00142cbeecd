"""Clients of Valkey that fail fast (torch-free): redis-py by default retries for seconds, which nobody here can afford.

Every caller has a plan for Valkey being away; the sooner it learns so, the better.
"""

from __future__ import annotations

import redis
import redis.asyncio
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.retry import Retry

TIMEOUT_S = 2.0


def client(url: str, *, timeout_s: float = TIMEOUT_S) -> redis.Redis:
    """Thread-safe, pooled. One retry at once, for a pooled connection that a restart has closed."""
    made: redis.Redis = redis.Redis.from_url(
        url,
        socket_connect_timeout=timeout_s,
        socket_timeout=timeout_s,
        health_check_interval=0,
        retry=Retry(NoBackoff(), 1),
    )
    return made


def async_client(url: str, *, timeout_s: float = TIMEOUT_S) -> redis.asyncio.Redis:
    """The same for an event loop; belongs to the loop that first uses it."""
    made: redis.asyncio.Redis = redis.asyncio.from_url(
        url,
        socket_connect_timeout=timeout_s,
        socket_timeout=timeout_s,
        health_check_interval=0,
        retry=AsyncRetry(NoBackoff(), 1),
    )
    return made
