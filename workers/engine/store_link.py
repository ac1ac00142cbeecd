"""The KV store as the engine uses it: prefixes in, computed blocks out, and the policy over the pool.

Everything here runs on the engine's thread; what other threads have to say (a write that is done, a new policy, a
purge) is queued and taken up at the next step, which an idle engine makes four times a second.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from workers.engine.arena import Arena
from workers.engine.blocks import BlockPool
from workers.engine.layout import CacheLayout, PoolViews
from workers.engine.publishing import withhold
from workers.engine.sequence import Phase, Sequence
from workers.engine.sidecar_ring import Ring
from workers.engine.store_distrust import StoreDistrust
from workers.engine.store_reads import StoreReads
from workers.engine.store_sidecars import StoreSidecars
from workers.engine.store_writes import StoreWrites
from workers.kvstore.policy import class_of
from workers.kvstore.store import Store

COMPUTING: Final = frozenset({Phase.PREFILL, Phase.DECODE, Phase.HELD})


class StoreLink:
    def __init__(
        self,
        store: Store,
        pool: BlockPool,
        arena: Arena,
        *,
        fingerprint: str,
        live: Callable[[], Iterable[Sequence]] = tuple,
        resume_from: Callable[[int, int], int] = lambda hit, prompt: hit,
    ) -> None:
        self.store = store
        self._pool = pool
        self._live = live
        self._resume_from = resume_from
        self._distrust = StoreDistrust(store)
        self._sidecars: StoreSidecars | None = None
        self._fingerprint = fingerprint
        self.reads = StoreReads(store, arena, self._distrust, budget_bytes=store.settings.buffer_bytes)
        self.writes = StoreWrites(store, pool, arena, fingerprint=fingerprint)
        self._purges: deque[str] = deque()
        store.policy.watch_purges(self._purges.append)

    def open_windows(self, layout: CacheLayout, views: PoolViews) -> None:
        """For a model whose window rows can be kept."""
        stored = layout.spec.stored_windows
        if stored is not None:
            ring = Ring(layout, views, stored)
            self._sidecars = StoreSidecars(
                self.store, ring, stored.window, self._distrust, fingerprint=self._fingerprint
            )
            self._distrust.kinds.append(ring.kind)

    @property
    def pending(self) -> bool:
        """Whether a step has something to look at although nothing computes."""
        looking = self.reads.under_way or (self._sidecars is not None and self._sidecars.under_way)
        return looking or bool(self._purges) or self.writes.to_unpin

    def ready(self, sequence: Sequence, pooled: int) -> bool:
        """Whether it is here what the store adds to the first `pooled` blocks, and what makes their resume cheap."""
        if not self.reads.ready(sequence, pooled):
            return False
        if self._sidecars is None:
            return True
        hit = (pooled + self.found(sequence, pooled)) * sequence.block_tokens
        return self._sidecars.ready(sequence, hit, self._resume_from(hit, sequence.prompt_tokens))

    def found(self, sequence: Sequence, pooled: int) -> int:
        """Blocks that the store adds to the first `pooled`."""
        return self.reads.found(sequence, pooled)

    def resume(self, sequence: Sequence, hit: int) -> int:
        """Where the prompt begins to run after a hit of `hit` tokens."""
        start = self._resume_from(hit, sequence.prompt_tokens)
        return start if self._sidecars is None else self._sidecars.resume(sequence, hit, start)

    def deferred(self, sequence: Sequence) -> None:
        """It waits for a decode worker: what was read for it makes room for others, and is read again."""
        self.reads.forget(sequence.request.request_id)
        if self._sidecars is not None:
            self._sidecars.forget(sequence.request.request_id)

    def turn(self) -> None:
        """At the beginning of each step: what other threads said, and what expired meanwhile."""
        self.writes.unpin()
        self.reads.turn()
        self._distrust.turn()
        while self._purges:
            self._purge(self._purges.popleft())
        policy = self.store.policy.current
        self._pool.expire(lambda name: policy.ttl_us(name) / 1e6)

    def _purge(self, scope: str) -> None:
        """`t:<salt id>`, `m:<fingerprint>` or `c:<claim>`."""
        kind, _, name = scope.partition(":")
        self.reads.drop_all()
        if self._sidecars is not None:
            self._sidecars.clear()
        if kind == "t":
            self._pool.purge_tenant(name)
            withhold(self._live(), lambda sequence: sequence.scope.tenant == name)
        elif kind == "c":
            self._pool.purge_class(class_of(name))
            withhold(self._live(), lambda sequence: sequence.scope.retention_class == class_of(name))
        elif name == self._fingerprint:
            self._pool.purge()
            withhold(self._live(), lambda _: True)

    def distrust(self, sequence: Sequence) -> None:
        """What the request computed or hit may be wrong: nothing of it is served again, from here or from the store."""
        chain = sequence.chain[: sequence.paged // sequence.block_tokens]
        self.reads.drop_all()
        if self._sidecars is not None:
            self._sidecars.distrust(chain)
        self._distrust.add(chain)

    def start(self, sequence: Sequence, pooled: int) -> int:
        """A request starts whose first `pooled` blocks the pool had. Copies what the store adds; how many blocks."""
        sequence.begun = self.store.clock.now()
        found = self.reads.found(sequence, pooled)
        stored = self.reads.stored(sequence)
        if found:
            self.reads.copy(sequence, pooled, sequence.slots[pooled : pooled + found])
        self.reads.forget(sequence.request.request_id)
        self.writes.started(sequence, pooled + found, stored)
        if self._sidecars is not None:
            self._sidecars.install(sequence)
        return found

    def progress(self, sequence: Sequence) -> None:
        """Some of the input or the output was computed."""
        if sequence.withheld:
            return
        unit = self.writes.progress(sequence) or sequence.computed == sequence.unit_at
        if self._sidecars is not None:
            self._sidecars.keep(sequence, unit_end=unit)

    def taken_over(self, sequence: Sequence) -> None:
        """Another worker computed the prompt, and stores it."""
        sequence.begun = self.store.clock.now()
        sequence.stored = sequence.prompt_tokens // sequence.block_tokens
        sequence.rings_exact_from = sequence.prompt_tokens  # how the other worker came by older rows is not known here

    def ended(self, sequence: Sequence) -> None:
        """The request is over, in whatever way; its blocks are still its own."""
        if sequence.phase in COMPUTING and sequence.published and not sequence.withheld:
            self.writes.hand_over(sequence)
            if self._sidecars is not None and sequence.phase is Phase.DECODE:
                self._sidecars.keep(sequence, unit_end=True)
        if self._sidecars is not None:
            self._sidecars.forget(sequence.request.request_id)
        self.reads.forget(sequence.request.request_id)
        self.writes.forget(sequence.request.request_id)

    def pinned(self) -> Iterator[list[int]]:
        return self.writes.pinned

    def close(self) -> None:
        self.reads.drop_all()
        self.store.close()
