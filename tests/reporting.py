"""Figures that a test measured, shown under pytest's results: nothing is asserted on absolute times."""

from __future__ import annotations

from collections.abc import Callable

Report = Callable[[str], None]
