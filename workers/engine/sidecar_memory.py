"""Sidecars that an engine keeps in memory, for hits in its own pool."""

from __future__ import annotations

import time
from collections import OrderedDict
from dataclasses import dataclass

from workers.identity import BlockHash
from workers.kvstore.policy import sidecar_claim
from workers.kvstore.store import Store


@dataclass(slots=True)
class Kept:
    data: bytes
    created: float
    """Unix seconds when it began to be computed: a purge since then makes it void."""
    unit_end: bool
    uses: dict[str, float]
    """Claims, and when each was last used (monotonic): it lives until the last one ends."""
    stored: bool = False
    """The KV store has it, or took it to write."""


class SidecarMemory:
    """By block, the least recently used going first; they live as the policy says."""

    def __init__(self, store: Store, bound: int) -> None:
        self._store = store
        self._bound = bound
        self._kept: OrderedDict[BlockHash, Kept] = OrderedDict()
        self._bytes = 0

    def _life_us(self, claim: str) -> float:
        return self._store.policy.current.ttl_us(claim)

    def put(
        self, block: BlockHash, data: bytes, retention_class: str, *, created: float, unit_end: bool = True
    ) -> Kept | None:
        """Keep it, if the class keeps such; what is known of the block already stays known."""
        claim = sidecar_claim(retention_class, unit_end=unit_end)
        if self._life_us(claim) < 0:
            return None
        known = self._kept.get(block)
        if known is None:
            known = self._kept[block] = Kept(data, created, unit_end, {})
            self._bytes += len(data)
        known.uses[claim] = time.monotonic()
        self._kept.move_to_end(block)
        while self._bytes > self._bound:
            self.drop(next(iter(self._kept)))
        return known

    def get(self, block: BlockHash, retention_class: str) -> Kept | None:
        """A use in that class, if it keeps such."""
        kept = self._kept.get(block)
        if kept is None:
            return None
        now = time.monotonic()
        if all((now - last) * 1e6 > self._life_us(claim) for claim, last in kept.uses.items()):
            self.drop(block)
            return None
        claim = sidecar_claim(retention_class, unit_end=True)
        if self._life_us(claim) >= 0:
            kept.uses[claim] = now
        self._kept.move_to_end(block)
        return kept

    def drop(self, block: BlockHash) -> None:
        kept = self._kept.pop(block, None)
        if kept is not None:
            self._bytes -= len(kept.data)

    def clear(self) -> None:
        self._kept.clear()
        self._bytes = 0
