"""Every request that the engine knows, by id, whatever its phase, and when the next of them runs out of time."""

from __future__ import annotations

from collections.abc import Iterator

from workers.engine.sequence import Phase, Sequence
from workers.protocol import RequestId

NEVER = float("inf")


class Registry:
    def __init__(self) -> None:
        self._sequences: dict[RequestId, Sequence] = {}
        self.next_deadline = NEVER
        """By the engine's clock; at most late by requests that ended meanwhile."""

    def __contains__(self, request_id: RequestId) -> bool:
        return request_id in self._sequences

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._sequences.values())

    def get(self, request_id: RequestId) -> Sequence | None:
        return self._sequences.get(request_id)

    def add(self, sequence: Sequence) -> None:
        self._sequences[sequence.request.request_id] = sequence
        self.watch(sequence)

    def remove(self, sequence: Sequence) -> None:
        del self._sequences[sequence.request.request_id]

    def count(self, phase: Phase) -> int:
        return sum(1 for sequence in self if sequence.phase is phase)

    def watch(self, sequence: Sequence) -> None:
        """Its deadline counts from now on."""
        self.next_deadline = min(self.next_deadline, _deadline(sequence))

    def overdue(self, now: float) -> list[Sequence]:
        """Requests past their deadline. O(1) while nobody is."""
        if now < self.next_deadline:
            return []
        late = [sequence for sequence in self if _deadline(sequence) <= now]
        self.next_deadline = min((d for d in map(_deadline, self) if d > now), default=NEVER)
        return late


def _deadline(sequence: Sequence) -> float:
    """A reserved request's blocks are being written to by the transfer: its deadline is the transfer's to keep."""
    return NEVER if sequence.phase is Phase.RESERVED else sequence.request.deadline
