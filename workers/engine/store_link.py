"""The KV store as the engine uses it: prefixes in, computed blocks out, and the policy over the pool.

Everything here runs on the engine's thread; what other threads have to say (a write that is done, a new policy, a
purge) is queued and taken up at the next step, which an idle engine makes four times a second.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Final

from workers.engine.arena import Arena
from workers.engine.blocks import BlockPool
from workers.engine.sequence import Phase, Sequence
from workers.engine.store_reads import StoreReads
from workers.engine.store_writes import StoreWrites
from workers.kvstore.policy import class_of
from workers.kvstore.store import Store

COMPUTING: Final = frozenset({Phase.PREFILL, Phase.DECODE, Phase.HELD})


class StoreLink:
    def __init__(self, store: Store, pool: BlockPool, arena: Arena, *, fingerprint: str) -> None:
        self.store = store
        self._pool = pool
        self._fingerprint = fingerprint
        self.reads = StoreReads(store, arena, budget_bytes=store.settings.buffer_bytes)
        self.writes = StoreWrites(store, pool, arena, fingerprint=fingerprint)
        self._purges: deque[str] = deque()
        store.policy.watch_purges(self._purges.append)

    @property
    def pending(self) -> bool:
        """Whether a step has something to look at although nothing computes."""
        return bool(self._purges) or self.reads.under_way or self.writes.to_unpin

    def turn(self) -> None:
        """At the beginning of each step: what other threads said, and what expired meanwhile."""
        self.writes.unpin()
        while self._purges:
            self._purge(self._purges.popleft())
        policy = self.store.policy.current
        self._pool.expire(lambda name: policy.ttl_us(name) / 1e6)

    def _purge(self, scope: str) -> None:
        """`t:<salt id>`, `m:<fingerprint>` or `c:<claim>`."""
        kind, _, name = scope.partition(":")
        self.reads.drop_all()
        if kind == "t":
            self._pool.purge_tenant(name)
        elif kind == "c":
            self._pool.purge_class(class_of(name))
        elif name == self._fingerprint:
            self._pool.purge()

    def start(self, sequence: Sequence, pooled: int) -> int:
        """A request starts whose first `pooled` blocks the pool had. Copies what the store adds; how many blocks."""
        found = self.reads.found(sequence, pooled)
        stored = self.reads.stored(sequence)
        if found:
            self.reads.copy(sequence, pooled, sequence.slots[pooled : pooled + found])
        self.reads.forget(sequence.request.request_id)
        self.writes.started(sequence, pooled + found, stored)
        return found

    def taken_over(self, sequence: Sequence) -> None:
        """Another worker computed the prompt, and stores it."""
        sequence.stored = sequence.prompt_tokens // sequence.block_tokens

    def ended(self, sequence: Sequence) -> None:
        """The request is over, in whatever way; its blocks are still its own."""
        if sequence.phase in COMPUTING:
            self.writes.hand_over(sequence)
        self.reads.forget(sequence.request.request_id)
        self.writes.forget(sequence.request.request_id)

    def pinned(self) -> Iterator[list[int]]:
        return self.writes.pinned

    def close(self) -> None:
        self.reads.drop_all()
        self.store.close()
