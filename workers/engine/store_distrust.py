"""Chains whose bytes may be wrong: nothing of them is taken from the KV store until it has forgotten them."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence as Many
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Final

from workers.identity import BlockHash
from workers.kvstore.store import Store

log: Final = logging.getLogger(__name__)

MOST: Final = 64
"""Chains that the store has not forgotten yet; of more, the oldest are given up (counted)."""
AGAIN_S: Final = 1.0
"""The store is asked again after so long, where it could not forget."""


@dataclass(slots=True)
class _Chain:
    blocks: list[BlockHash]
    future: Future[int] | None = None
    not_before: float = 0.0


class StoreDistrust:
    """On the engine's thread."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._chains: list[_Chain] = []
        self.kinds: list[str] = []
        """Of sidecars that the blocks may have."""

    def add(self, chain: Many[BlockHash]) -> None:
        if not chain:
            return
        self._chains.append(_Chain(list(chain)))
        if len(self._chains) > MOST:
            self._chains.pop(0)
            self._store.health.count("forgets_failed")
        self.turn()

    def turn(self) -> None:
        """Ask the store to forget, and trust again what it has forgotten."""
        for known in list(self._chains):
            if known.future is None and time.monotonic() >= known.not_before:
                known.future = self._store.forget_chain(known.blocks, self.kinds)
                known.not_before = time.monotonic() + AGAIN_S
            if known.future is None or not known.future.done():
                continue
            if known.future.cancelled() or (error := known.future.exception()) is not None:
                log.warning(
                    "the store could not forget faulty blocks yet: %s", "" if known.future.cancelled() else error
                )
                self._store.health.count("forgets_failed")
                known.future = None
            else:
                self._chains.remove(known)

    def trusted(self, chain: Many[BlockHash]) -> int:
        """Leading blocks of `chain` that may be taken from the store."""
        for known in self._chains:
            if chain and chain[0] == known.blocks[0]:
                return 0
        return len(chain)
