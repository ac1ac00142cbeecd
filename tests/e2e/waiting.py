"""Waiting for what other processes do, with a deadline and the reason why it was passed."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def until(what: str, check: Callable[[], T | None], timeout_s: float = 60.0, every_s: float = 0.1) -> T:
    """The first truthy value of `check`. Fails naming `what`, and the last value, past the deadline."""
    deadline = time.monotonic() + timeout_s
    while True:
        value = check()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"{what}: not within {timeout_s:g} s (last: {value!r})")
        time.sleep(every_s)
