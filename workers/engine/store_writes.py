"""Blocks that requests computed go to the KV store behind them.

A write borrows the pool's memory: its blocks are pinned until they are on the disk, a bounded share of the pool at
once; beyond that they are copied. Nothing waits: what the store's queue has no room for is dropped and counted there.

Blocks are handed over where a unit ends: at the end of the input, every so many tokens of a long one, and when the
request is over, so that the next turn finds the answer too. A worker that decodes what another one prefilled hands over
what comes after the prompt.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Final

from workers.engine.arena import Arena
from workers.engine.blocks import BlockPool
from workers.engine.sequence import Phase, Sequence
from workers.kvstore.store import Store
from workers.protocol import RequestId

INTERVAL_TOKENS: Final = 8192
"""Long inputs become units so often, before they are complete."""
PINNED_SHARE: Final = 0.25
"""Of the pool, at most, waits for the disk."""


class StoreWrites:
    """On the engine's thread, except that the store says from its own when a write is done."""

    def __init__(self, store: Store, pool: BlockPool, arena: Arena, *, fingerprint: str) -> None:
        self._store, self._pool, self._arena = store, pool, arena
        self._fingerprint = fingerprint
        self._most_pinned = int(PINNED_SHARE * pool.total)
        self._pins: dict[int, list[int]] = {}
        self._number = 0
        self._done: deque[int] = deque()
        self._uses: dict[RequestId, Future[int]] = {}

    @property
    def pinned(self) -> Iterator[list[int]]:
        """Blocks that writes hold, as the pool's owners are counted."""
        return iter(self._pins.values())

    @property
    def pinned_blocks(self) -> int:
        return sum(len(slots) for slots in self._pins.values())

    @property
    def to_unpin(self) -> bool:
        return bool(self._done)

    def unpin(self) -> None:
        """Give back what was written."""
        while self._done:
            self._pool.release(self._pins.pop(self._done.popleft()))

    def started(self, sequence: Sequence, hit: int, stored: int) -> None:
        """A request was scheduled that takes `hit` blocks from pool and store together; the index named `stored`."""
        sequence.stored = max(hit, stored)
        full = sequence.prompt_tokens // sequence.block_tokens
        use = self._store.use(sequence.chain[:hit], sequence.scope.retention_class, prompt_blocks=full)
        if use is not None and hit > stored:  # the pool may know blocks that the store has lost
            self._uses[sequence.request.request_id] = use

    def progress(self, sequence: Sequence) -> bool:
        """Some of the input or the output was computed. Whether a unit ends here, whose blocks are handed over."""
        complete = sequence.phase is Phase.PREFILL and sequence.left <= 0
        if complete or (sequence.published - sequence.stored) * sequence.block_tokens >= INTERVAL_TOKENS:
            self.hand_over(sequence)
            return True
        return False

    def hand_over(self, sequence: Sequence) -> None:
        """Write every full block that was not yet."""
        request_id, end = sequence.request.request_id, sequence.published
        use = self._uses.get(request_id)
        if use is not None and use.done():
            del self._uses[request_id]
            if not use.cancelled() and use.exception() is None:
                sequence.stored = min(sequence.stored, use.result())
        start = sequence.stored
        if end <= start or not sequence.slots:
            return
        sequence.stored = end
        slots = sequence.slots[start:end]
        blocks: list[bytes | bytearray | memoryview] = [self._arena.block(slot) for slot in slots]
        done = None
        if self.pinned_blocks + len(slots) <= self._most_pinned:
            self._number += 1
            number = self._number
            self._pool.pin(slots)
            self._pins[number] = slots

            def done() -> None:
                self._done.append(number)

        self._store.put_run(
            sequence.chain[:end],
            start,
            blocks,
            salt=sequence.request.salt,
            fingerprint=self._fingerprint,
            retention_class=sequence.scope.retention_class,
            created=sequence.begun,
            done=done,
        )

    def forget(self, request_id: RequestId) -> None:
        self._uses.pop(request_id, None)
