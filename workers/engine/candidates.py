"""Requests that found no room to be reserved: their prompts are hashed already, and they will ask again."""

from __future__ import annotations

from workers.engine.api import EngineRequest
from workers.engine.sequence import Sequence
from workers.protocol import RequestId


class Candidates:
    """At most `bound` of them; beyond it the one that asked longest ago is hashed again if it comes back."""

    def __init__(self, bound: int) -> None:
        self._bound = bound
        self._kept: dict[RequestId, Sequence] = {}

    def __len__(self) -> int:
        return len(self._kept)

    def take(self, request: EngineRequest) -> Sequence | None:
        """What was kept of this very request; another one under the same id knows nothing of it."""
        found = self._kept.pop(request.request_id, None)
        return found if found is not None and found.request is request else None

    def keep(self, sequence: Sequence) -> None:
        while len(self._kept) >= self._bound:
            del self._kept[next(iter(self._kept))]
        self._kept[sequence.request.request_id] = sequence

    def forget(self, request_id: RequestId) -> None:
        self._kept.pop(request_id, None)
