"""What is wrong with the store, since when, and when it is tried again: one place for alerts and pages to look."""

from __future__ import annotations

import enum
import errno
import threading
import time
from collections import Counter
from dataclasses import dataclass


class Trouble(enum.StrEnum):
    """Why the store serves less than it could; the values are stable, alerts are written against them."""

    INDEX_AWAY = "index_away"
    INDEX_LOST = "index_lost"
    INDEX_FOREIGN = "index_foreign"
    ROOT_MISSING = "root_missing"
    ROOT_FOREIGN = "root_foreign"
    READ_ONLY = "read_only"
    DISK_FULL = "disk_full"
    SLOW = "slow"
    IO_ERROR = "io_error"
    CORRUPT = "corrupt"
    OVER_BUDGET = "over_budget"


_OF_ERRNO = {
    errno.ENOSPC: Trouble.DISK_FULL,
    errno.EDQUOT: Trouble.DISK_FULL,
    errno.EROFS: Trouble.READ_ONLY,
    errno.ESTALE: Trouble.ROOT_MISSING,
    errno.ENOTCONN: Trouble.ROOT_MISSING,
    errno.ENODEV: Trouble.ROOT_MISSING,
}


def trouble_of(error: OSError) -> Trouble:
    return _OF_ERRNO.get(error.errno or 0, Trouble.IO_ERROR)


@dataclass(frozen=True, slots=True)
class Ailment:
    trouble: Trouble
    reason: str
    since: float
    """Unix seconds."""
    count: int
    """How often it was seen since then."""


class Health:
    """Thread-safe. Nothing is sticky: whoever sees a thing work again clears it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ailments: dict[Trouble, Ailment] = {}
        self.counters: Counter[str] = Counter()

    def report(self, trouble: Trouble, reason: str) -> None:
        with self._lock:
            known = self._ailments.get(trouble)
            since, count = (known.since, known.count) if known else (time.time(), 0)
            self._ailments[trouble] = Ailment(trouble, reason, since, count + 1)

    def clear(self, *troubles: Trouble) -> None:
        with self._lock:
            for trouble in troubles:
                self._ailments.pop(trouble, None)

    def count(self, name: str, amount: int = 1) -> None:
        with self._lock:
            self.counters[name] += amount

    def has(self, *troubles: Trouble) -> bool:
        with self._lock:
            return any(trouble in self._ailments for trouble in troubles)

    def ailments(self) -> list[Ailment]:
        with self._lock:
            return sorted(self._ailments.values(), key=lambda a: a.since)

    def counts(self) -> dict[str, int]:
        with self._lock:
            return dict(self.counters)


class Breaker:
    """Half-open breaker: one caller may try again when the pause is over; pauses double up to a bound."""

    def __init__(self, *, first_s: float, most_s: float) -> None:
        self._first, self._most = first_s, most_s
        self._lock = threading.Lock()
        self._pause = 0.0
        self._next = 0.0
        self.reason = ""

    def admits(self) -> bool:
        with self._lock:
            if self._pause == 0.0:
                return True
            now = time.monotonic()
            if now < self._next:
                return False
            self._next = now + self._pause  # the others wait for this caller's answer
            return True

    @property
    def open(self) -> bool:
        return self._pause > 0.0

    def failed(self, reason: str) -> None:
        with self._lock:
            self.reason = reason
            self._pause = min(self._most, max(self._first, 2 * self._pause))
            self._next = time.monotonic() + self._pause

    def worked(self) -> None:
        with self._lock:
            self._pause = 0.0
            self.reason = ""
