"""Signing in is throttled: after some failures, further attempts wait. Per user and address, and per address.

Counted in Valkey, so for all processes together; while it is away each process counts for itself.
"""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections import OrderedDict
from functools import cache
from typing import Final

import redis

from controlplane.accounts import invalidation

FAILURES_PER_ACCOUNT: Final = 5
"""Of one user name from one address, within `WINDOW_S` of the first."""
FAILURES_PER_ADDRESS: Final = 30
"""Of all user names from one address."""
WINDOW_S: Final = 300
LOCAL_CAPACITY: Final = 10_000

log = logging.getLogger(__name__)


def _limits(username: str, address: str) -> tuple[tuple[str, int], ...]:
    """Keys and their limits. Hashed: what people type into the field of the name (at times a password) is not kept."""
    pair = hashlib.sha256(f"{username.casefold()}\0{address}".encode()).hexdigest()
    alone = hashlib.sha256(address.encode()).hexdigest()
    return (
        (f"galley:login:pair:{pair}", FAILURES_PER_ACCOUNT),
        (f"galley:login:address:{alone}", FAILURES_PER_ADDRESS),
    )


class LoginThrottle:
    def __init__(self, client: redis.Redis) -> None:
        self._client = client
        self._lock = threading.Lock()
        self._local: OrderedDict[str, tuple[int, float]] = OrderedDict()
        """Failures and monotonic end of their window, by key; asked while Valkey is away."""

    def wait_s(self, username: str, address: str) -> float:
        """Seconds until an attempt is looked at again; 0: now."""
        limits = _limits(username, address)
        try:
            with self._client.pipeline(transaction=False) as pipe:
                for key, _ in limits:
                    pipe.get(key)
                    pipe.pttl(key)
                answers = pipe.execute()
        except redis.RedisError as error:
            log.warning("sign-ins are throttled in this process alone (%s)", error)
            return self._wait_locally(limits)
        return max(
            max(0, left) / 1000 if int(count or 0) >= limit else 0.0
            for (_, limit), count, left in zip(limits, answers[::2], answers[1::2], strict=True)
        )

    def _wait_locally(self, limits: tuple[tuple[str, int], ...]) -> float:
        now = time.monotonic()
        with self._lock:
            states = [(self._local.get(key, (0, 0.0)), limit) for key, limit in limits]
        return max(max(0.0, end - now) if failures >= limit else 0.0 for (failures, end), limit in states)

    def failed(self, username: str, address: str) -> None:
        limits = _limits(username, address)
        for key, _ in limits:
            self._count_locally(key)
        try:
            with self._client.pipeline(transaction=True) as pipe:
                for key, _ in limits:
                    pipe.set(key, 0, ex=WINDOW_S, nx=True)
                    pipe.incr(key)
                pipe.execute()
        except redis.RedisError as error:
            log.warning("a failed sign-in is counted in this process alone (%s)", error)

    def succeeded(self, username: str, address: str) -> None:
        """Forget the failures of the user from there; those of the address stay."""
        pair = _limits(username, address)[0][0]
        with self._lock:
            self._local.pop(pair, None)
        try:
            self._client.delete(pair)
        except redis.RedisError as error:
            log.warning("failed sign-ins of before are not forgotten (%s)", error)

    def _count_locally(self, key: str) -> None:
        now = time.monotonic()
        with self._lock:
            failures, end = self._local.get(key, (0, 0.0))
            self._local[key] = (failures + 1, end) if end > now else (1, now + WINDOW_S)
            self._local.move_to_end(key)
            while len(self._local) > LOCAL_CAPACITY:
                self._local.popitem(last=False)


@cache
def login_throttle() -> LoginThrottle:
    """The process's throttle."""
    return LoginThrottle(invalidation.client())
