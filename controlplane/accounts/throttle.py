"""Signing in is throttled: after some failures, further attempts wait. Per user and address, and per address.

An attempt counts as failed from its beginning, and is taken back when it succeeds: passwords are slow to check, and
many attempts at once would all find the count below its limit otherwise. Counted in Valkey, so for all processes
together; while it is away each process counts for itself.
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

_BEGIN: Final = """
local wait = 0
for i, key in ipairs(KEYS) do
    if tonumber(redis.call('get', key) or '0') >= tonumber(ARGV[i + 1]) then
        wait = math.max(wait, redis.call('pttl', key))
    end
end
if wait > 0 then return wait end
for _, key in ipairs(KEYS) do
    redis.call('set', key, 0, 'EX', ARGV[1], 'NX')
    redis.call('incr', key)
end
return 0
"""
_TAKE_BACK: Final = (
    "if tonumber(redis.call('get', KEYS[1]) or '0') > 0 then return redis.call('decr', KEYS[1]) end return 0"
)

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
        """Seconds until an attempt is looked at again; 0: now. Counts nothing."""
        limits = _limits(username, address)
        try:
            with self._client.pipeline(transaction=False) as pipe:
                for key, _ in limits:
                    pipe.get(key)
                    pipe.pttl(key)
                answers = pipe.execute()
        except redis.RedisError as error:
            log.warning("sign-ins are throttled in this process alone (%s)", error)
            with self._lock:
                return self._wait_locally(limits)
        return max(
            max(0, left) / 1000 if int(count or 0) >= limit else 0.0
            for (_, limit), count, left in zip(limits, answers[::2], answers[1::2], strict=True)
        )

    def begin(self, username: str, address: str) -> float:
        """Count an attempt and return 0, or, where it has to wait, the seconds until one is looked at again."""
        limits = _limits(username, address)
        try:
            names, numbers = [key for key, _ in limits], [limit for _, limit in limits]
            wait = float(self._client.eval(_BEGIN, len(names), *names, WINDOW_S, *numbers)) / 1000
        except redis.RedisError as error:
            log.warning("sign-ins are throttled in this process alone (%s)", error)
            return self._begin_locally(limits)
        if not wait:
            with self._lock:
                for key, _ in limits:
                    self._count_locally(key)
        return wait

    def _begin_locally(self, limits: tuple[tuple[str, int], ...]) -> float:
        with self._lock:
            wait = self._wait_locally(limits)
            if not wait:
                for key, _ in limits:
                    self._count_locally(key)
        return wait

    def succeeded(self, username: str, address: str) -> None:
        """Forget the failures of the user from there, and this attempt of the address; its failures stay."""
        (pair, _), (alone, _) = _limits(username, address)
        with self._lock:
            self._local.pop(pair, None)
            self._take_back_locally(alone)
        try:
            self._client.delete(pair)
            self._client.eval(_TAKE_BACK, 1, alone)
        except redis.RedisError as error:
            log.warning("failed sign-ins of before are not forgotten (%s)", error)

    def withdrawn(self, username: str, address: str) -> None:
        """The attempt came to no answer by our own fault: it does not count."""
        keys = [key for key, _ in _limits(username, address)]
        with self._lock:
            for key in keys:
                self._take_back_locally(key)
        try:
            for key in keys:
                self._client.eval(_TAKE_BACK, 1, key)
        except redis.RedisError as error:
            log.warning("a sign-in without an answer is counted as failed (%s)", error)

    # --- memory of this process, under the lock --------------------------------------------------------------------

    def _wait_locally(self, limits: tuple[tuple[str, int], ...]) -> float:
        now = time.monotonic()
        states = [(self._local.get(key, (0, 0.0)), limit) for key, limit in limits]
        return max(max(0.0, end - now) if failures >= limit else 0.0 for (failures, end), limit in states)

    def _count_locally(self, key: str) -> None:
        now = time.monotonic()
        failures, end = self._local.get(key, (0, 0.0))
        self._local[key] = (failures + 1, end) if end > now else (1, now + WINDOW_S)
        self._local.move_to_end(key)
        while len(self._local) > LOCAL_CAPACITY:
            self._local.popitem(last=False)

    def _take_back_locally(self, key: str) -> None:
        failures, end = self._local.get(key, (0, 0.0))
        if failures > 0:
            self._local[key] = (failures - 1, end)


@cache
def login_throttle() -> LoginThrottle:
    """The process's throttle."""
    return LoginThrottle(invalidation.client())
