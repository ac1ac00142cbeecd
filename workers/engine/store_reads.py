"""Prefixes that come from the KV store: read while a request waits, copied into its blocks when it starts.

A read begins when the request could have room, for the oldest requests first and within a budget of bytes, and never
holds a step up: a request whose read is under way is passed over until the bytes are here or the store's deadline has
passed. What comes late, damaged or not at all is computed.

Nobody waits long for others either: what was read counts by its bytes alone, whoever gets no credit gives it back, and
a request that found no place for its read within the store's deadline starts without.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence as Many
from dataclasses import dataclass
from typing import Final

import numpy as np

from workers.engine.arena import Arena
from workers.engine.sequence import Sequence
from workers.engine.store_distrust import StoreDistrust
from workers.kvstore.reading import RunData
from workers.kvstore.reads import Prefetch
from workers.kvstore.store import Store
from workers.protocol import RequestId

MAX_READS: Final = 16
"""Requests whose prefixes are being read at once."""
TRIES: Final = 3
"""The pool may lose blocks below those that were read: then the read begins again, so often at most."""


@dataclass(slots=True)
class _Read:
    start: int
    """First block that was asked for: what came before was in the pool."""
    blocks: int
    """Blocks that may come; known better once the index answered."""
    prefetch: Prefetch
    until: float
    run: RunData | None = None

    @property
    def under_way(self) -> bool:
        return self.run is None


class StoreReads:
    """On the engine's thread. `found` blocks of a sequence are usable beyond those of the pool."""

    def __init__(self, store: Store, arena: Arena, distrust: StoreDistrust, *, budget_bytes: int) -> None:
        self._store = store
        self._distrust = distrust
        self._arena = arena
        self._budget_bytes = budget_bytes
        self._reads: dict[RequestId, _Read] = {}
        self._tries: dict[RequestId, int] = {}
        self._places: dict[RequestId, float] = {}
        """Requests that could not begin to read, and when they go on without (monotonic)."""
        self._refused = False

    @property
    def under_way(self) -> bool:
        """Whether anybody is read for, or found no place in the last step."""
        return self._refused or self._under_way > 0

    @property
    def _under_way(self) -> int:
        return sum(1 for read in self._reads.values() if read.under_way)

    def turn(self) -> None:
        """At the beginning of each step: take what came, also for those that have lost their room meanwhile."""
        self._refused = False
        for read in self._reads.values():
            if read.under_way:
                self._look(read)

    @property
    def bytes_held(self) -> int:
        return sum(read.blocks for read in self._reads.values()) * self._arena.block_bytes

    def ready(self, sequence: Sequence, pooled: int) -> bool:
        """Whether all that the store may add to the first `pooled` blocks is here; begins to read where nobody did."""
        request_id = sequence.request.request_id
        usable = self._distrust.trusted(sequence.chain[: (sequence.prompt_tokens - 1) // sequence.block_tokens])
        read = self._reads.get(request_id)
        if pooled >= usable:
            self.drop(request_id)
            return True
        if read is not None and read.start > pooled:
            self.drop(request_id)
            read = None
        if read is None:
            if self._tries.get(request_id, 0) >= TRIES:
                return True
            return not self._begin(sequence, pooled, usable) and self._waited(request_id)
        return not read.under_way

    def _begin(self, sequence: Sequence, start: int, stop: int) -> bool:
        """False where there is no place for one more read."""
        size = (stop - start) * self._arena.block_bytes
        if self._reads and (self._under_way >= MAX_READS or self.bytes_held + size > self._budget_bytes):
            return False
        request_id = sequence.request.request_id
        self._places.pop(request_id, None)
        self._tries[request_id] = self._tries.get(request_id, 0) + 1
        until = time.monotonic() + self._store.settings.read_deadline_s
        self._reads[request_id] = _Read(start, stop - start, self._store.prefetch(sequence.chain[:stop], start), until)
        return True

    def _waited(self, request_id: RequestId) -> bool:
        """Whether a request without a place has waited for one as long as for a read: it goes on without."""
        now = time.monotonic()
        if now > self._places.setdefault(request_id, now + self._store.settings.read_deadline_s):
            return True
        self._refused = True
        return False

    def _look(self, read: _Read) -> None:
        if read.prefetch.hit.done() and not read.prefetch.hit.cancelled():
            read.blocks = min(read.blocks, max(0, read.prefetch.hit.result().blocks - read.start))
        if read.prefetch.done() or time.monotonic() > read.until:
            read.run = read.prefetch.take(0.0)
            fit = itertools.takewhile(lambda block: len(block) == self._arena.block_bytes, read.run.blocks)
            read.run.blocks = list(fit)
            read.blocks = len(read.run.blocks)

    def found(self, sequence: Sequence, pooled: int) -> int:
        """Blocks that are here beyond the first `pooled`."""
        read = self._reads.get(sequence.request.request_id)
        if read is None or read.run is None or read.start > pooled:
            return 0
        return max(0, read.start + len(read.run.blocks) - pooled)

    def stored(self, sequence: Sequence) -> int:
        """Blocks of the prompt that the store said it has; 0 where it was not asked or did not answer."""
        read = self._reads.get(sequence.request.request_id)
        if read is None or not read.prefetch.hit.done() or read.prefetch.hit.cancelled():
            return 0
        return read.prefetch.hit.result().blocks

    def copy(self, sequence: Sequence, pooled: int, slots: Many[int]) -> None:
        """Fill `slots`, which are the blocks from `pooled` on; then the read's memory goes back."""
        read = self._reads.get(sequence.request.request_id)
        assert read is not None
        assert read.run is not None
        first = pooled - read.start
        for slot, block in zip(slots, read.run.blocks[first:], strict=False):
            # By numpy, which lets other threads run meanwhile.
            np.copyto(np.frombuffer(self._arena.block(slot), np.uint8), np.frombuffer(block, np.uint8))
        self.drop(sequence.request.request_id)

    def drop(self, request_id: RequestId) -> None:
        """The request ended, or has no need of it."""
        read = self._reads.pop(request_id, None)
        if read is None:
            return
        if read.run is not None:
            read.run.release()
        else:
            read.prefetch.drop()

    def forget(self, request_id: RequestId) -> None:
        """The request ended, started, or begins to wait anew."""
        self.drop(request_id)
        self._tries.pop(request_id, None)
        self._places.pop(request_id, None)

    def drop_all(self) -> None:
        """What was read may not be used any more (a purge); who waits asks again."""
        for request_id in list(self._reads):
            self.drop(request_id)
