"""Time as the store sees it, so that a trace of days replays in minutes and tests need not wait."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    def now(self) -> float:
        """Unix time in seconds."""


class SystemClock:
    """The host's clock. Hosts that share a store keep their clocks within seconds of each other (NTP)."""

    def now(self) -> float:
        return time.time()


class ManualClock:
    """A clock that stands still until it is moved."""

    def __init__(self, start: float = 1_700_000_000.0) -> None:
        self._now = start

    def now(self) -> float:
        return self._now

    def advance(self, seconds: float) -> None:
        if seconds < 0:
            raise ValueError("time does not run backwards")
        self._now += seconds

    def set(self, now: float) -> None:
        """Move to `now`; an earlier instant is ignored, so that events may arrive slightly out of order."""
        self._now = max(self._now, now)


def micros(seconds: float) -> int:
    """Microseconds; the unit of the index, exact in the doubles that Valkey's sorted sets hold."""
    return round(seconds * 1_000_000)
