"""Arithmetic of cumulative latency histograms: differences, sums, quantiles. Pure functions on lists of counts.

A histogram has a count per bucket of `workers.snapshots.LATENCY_BOUNDS_S` (seconds, upper bounds, inclusive) and one
more for what lies above the last bound.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from workers.snapshots import LATENCY_BOUNDS_S

BUCKETS: Final = len(LATENCY_BOUNDS_S) + 1


def empty() -> list[int]:
    return [0] * BUCKETS


def difference(new: Sequence[int], old: Sequence[int]) -> list[int]:
    """What was observed between two readings of one process. Raises ValueError where a count went back."""
    counts = [a - b for a, b in zip(new, old, strict=True)]
    if min(counts, default=0) < 0:
        raise ValueError("a cumulative histogram went backwards")
    return counts


def merged(histograms: Iterable[Sequence[int]]) -> list[int]:
    total = empty()
    for counts in histograms:
        total = [a + b for a, b in zip(total, counts, strict=True)]
    return total


def quantile(counts: Sequence[int], q: float) -> float | None:
    """Estimate in seconds, linear within the bucket (Prometheus' `histogram_quantile`); None without observations.

    Above the last bound nothing is known: the last bound stands for it.
    """
    total = sum(counts)
    if total == 0:
        return None
    rank = q * total
    below = 0
    for index, count in enumerate(counts):
        if count and below + count >= rank:
            if index == len(LATENCY_BOUNDS_S):
                return LATENCY_BOUNDS_S[-1]
            low = LATENCY_BOUNDS_S[index - 1] if index else 0.0
            return low + (LATENCY_BOUNDS_S[index] - low) * max(0.0, rank - below) / count
        below += count
    raise AssertionError("the last bucket holds the largest rank")
