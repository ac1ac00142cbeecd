"""How a worker process ends."""

from __future__ import annotations

EXIT_DRAINED = 0
EXIT_CRASHED = 1
EXIT_BAD_SPEC = 3
"""Starting again will not help by itself: the agent takes its time."""


class BadSpec(Exception):
    """The specification or the model cannot be served; the message says what to change."""
