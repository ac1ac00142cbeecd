"""Sidecars: the window rows of a block, kept where a unit ends, so that a hit there is cheap (design, exact resume).

A hit gives paged rows, but not what the windows of the first rows after it must see. Where the rows of the window - 1
positions before some position s were kept, a prompt runs from s; else the model says from where it must run to make
them again. Both give what a cold run gives; sidecars only save computing. They are kept in memory for hits in the pool
and written to the KV store, whose policy says which of them live.

Units end with the input, with the output, every so many tokens of a long text, and where a common prefix of requests
ends: a hit that ends where no unit did begins two blocks earlier than it must and stops once at its end, so that the
next request that parts from the text there finds its windows.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass
from typing import Final

from workers.engine.sequence import Phase, Sequence
from workers.engine.sidecar_memory import SidecarMemory
from workers.engine.sidecar_ring import Ring
from workers.engine.store_distrust import StoreDistrust
from workers.identity import BlockHash
from workers.kvstore.policy import sidecar_claim
from workers.kvstore.store import Store
from workers.protocol import RequestId

log: Final = logging.getLogger(__name__)

UNIT_BLOCKS: Final = 2
"""Sidecars of a unit's last blocks: wherever the next prompt begins to run, they cover the positions before it."""


@dataclass(slots=True)
class _Search:
    """Looking for the sidecars that a hit of `hit` tokens can use."""

    hit: int
    future: Future[dict[int, bytes]] | None
    until: float
    found: dict[int, bytes]
    recompute_from: int
    """Where the prompt begins without kept rows; earlier ones are of no use."""
    exact_from: int = 0
    """Ring rows from here on are exact, should the prompt begin where `resume` said last, without kept rows."""


class StoreSidecars:
    """On the engine's thread."""

    def __init__(self, store: Store, ring: Ring, window: int, distrust: StoreDistrust, *, fingerprint: str) -> None:
        self._store, self._ring, self._window, self._distrust = store, ring, window, distrust
        self._fingerprint = fingerprint
        self.memory = SidecarMemory(store, store.settings.sidecar_cache_bytes)
        self._searches: dict[RequestId, _Search] = {}
        self.used = 0
        """Requests that began from kept rows."""

    @property
    def under_way(self) -> bool:
        return any(search.future is not None for search in self._searches.values())

    def ready(self, sequence: Sequence, hit: int, recompute_from: int) -> bool:
        """Whether it is known what is kept for a hit of `hit` tokens; begins to look where nobody did."""
        if not hit or recompute_from >= hit:
            return True
        request_id = sequence.request.request_id
        search = self._searches.get(request_id)
        if search is None or search.hit != hit:
            search = self._searches[request_id] = self._search(sequence, hit, recompute_from)
        if search.future is None:
            return True
        if not search.future.done() and time.monotonic() < search.until:
            return False
        search.found |= self._result(search.future)
        search.future = None
        return True

    def _result(self, future: Future[dict[int, bytes]]) -> dict[int, bytes]:
        """What came of a search, whatever became of it; sidecars of another size are none."""
        try:
            came = future.result(0)
        except (TimeoutError, CancelledError):
            future.cancel()
            return {}
        except Exception:
            self._store.health.count("sidecars_failed")
            log.exception("a search for kept window rows failed")
            return {}
        fit = {block: data for block, data in came.items() if len(data) == self._ring.sidecar_bytes}
        if len(fit) < len(came):
            self._store.health.count("sidecars_misfit", len(came) - len(fit))
        return fit

    def _search(self, sequence: Sequence, hit: int, recompute_from: int) -> _Search:
        last = min(hit, sequence.prompt_tokens - self._window)
        until = time.monotonic() + self._store.settings.read_deadline_s
        if last <= 0:
            return _Search(hit, None, until, {}, recompute_from)
        size = sequence.block_tokens
        blocks = range(max(0, recompute_from - self._window) // size, (last - 1) // size + 1)
        name = sequence.scope.retention_class
        here_are = ((block, self.memory.get(sequence.chain[block], name)) for block in blocks)
        kept = {block: known.data for block, known in here_are if known is not None}
        here = self._start(sequence, hit, kept, recompute_from)
        trusted = self._distrust.trusted(sequence.chain[: blocks.stop]) == blocks.stop
        if (here is not None and here == last) or not trusted:
            return _Search(hit, None, until, kept, recompute_from)

        def choose(there: set[int]) -> list[int]:
            start = self._start(sequence, hit, there | kept.keys(), recompute_from)
            return [] if start is None else [block for block in self._needed(start) if block not in kept]

        missing = [block for block in blocks if block not in kept]
        future = self._store.sidecars.fetch(
            sequence.chain[: blocks.stop],
            missing,
            self._ring.kind,
            retention_class=name,
            choose=choose,
        )
        return _Search(hit, future, until, kept, recompute_from)

    def _needed(self, start: int) -> range:
        """The blocks that hold the window - 1 positions before `start`."""
        size = self._ring.block_tokens
        return range(max(0, start - self._window + 1) // size, (start - 1) // size + 1)

    def _start(self, sequence: Sequence, hit: int, there: Collection[int], beyond: int) -> int | None:
        """The last position after `beyond` that a prompt can begin from with the sidecars of these blocks."""
        if not there:
            return None
        size = self._ring.block_tokens
        beyond = max(beyond, min(there) * size)
        last = min(hit, sequence.prompt_tokens - self._window)
        for start in (last, *range((last - 1) // size * size, beyond, -size)):
            if start > beyond and all(block in there for block in self._needed(start)):
                return start
        return None

    def resume(self, sequence: Sequence, hit: int, recompute_from: int) -> int:
        """Where the prompt begins to run: where kept rows allow, if that is later than by recompute."""
        search = self._searches.get(sequence.request.request_id)
        if search is None or search.hit != hit:
            return recompute_from
        start = self._start(sequence, hit, search.found, recompute_from)
        if start is not None:
            return start
        # Rows that run again are exact in every window from the hit's end on; begun earlier, from earlier on.
        more = 0
        if self._store.policy.current.ttl_us(sidecar_claim(sequence.scope.retention_class, unit_end=True)) >= 0:
            more = UNIT_BLOCKS * sequence.block_tokens
        start = max(0, recompute_from - more)
        search.exact_from = hit - more if start else 0
        return start

    def install(self, sequence: Sequence) -> None:
        """The request starts, its seat cleared: put the rows that it begins from into its ring."""
        search = self._searches.pop(sequence.request.request_id, None)
        if search is None:
            sequence.rings_exact_from = sequence.paged_from if sequence.computed else 0
            return
        start = self._start(sequence, search.hit, search.found, search.recompute_from)
        if start is None or start < min(search.hit, sequence.prompt_tokens - self._window):
            sequence.unit_at = search.hit
        if start == sequence.computed:
            assert sequence.seat is not None
            blocks = self._needed(sequence.computed)
            for block in blocks:
                self._ring.copy_in(sequence.seat, block, search.found[block])
            self._used(sequence, {block: search.found[block] for block in blocks})
            sequence.rings_from = blocks.start * sequence.block_tokens
            sequence.rings_exact_from = sequence.rings_from
            self.used += 1
        else:
            sequence.rings_exact_from = search.exact_from

    def _used(self, sequence: Sequence, rows: dict[int, bytes]) -> None:
        """A prompt begins from these: those of memory are used in the store too, and written again where it lost
        them; those of the store are kept in memory."""
        renewed = []
        for block, data in rows.items():
            name = sequence.scope.retention_class
            known = self.memory.get(sequence.chain[block], name)
            if known is not None:
                renewed.append((block, data, known.created))
            elif known := self.memory.put(sequence.chain[block], data, name, created=sequence.begun):
                known.stored = True
        if renewed:
            self._renew(sequence, renewed)

    def _renew(self, sequence: Sequence, rows: list[tuple[int, bytes, float]]) -> None:
        self._store.sidecars.renew(
            sequence.chain,
            rows,
            self._ring.kind,
            salt=sequence.request.salt,
            fingerprint=self._fingerprint,
            retention_class=sequence.scope.retention_class,
        )

    def keep(self, sequence: Sequence, *, unit_end: bool) -> None:
        """Keep what the ring holds of the last full blocks that the request computed: where a unit ends, and inside it
        for classes that keep all (of a step longer than the ring, what is left of it)."""
        if sequence.seat is None or sequence.phase not in (Phase.PREFILL, Phase.DECODE):
            return
        name = sequence.scope.retention_class
        every = self._store.policy.current.ttl_us(sidecar_claim(name, unit_end=False)) >= 0
        if not unit_end and not every:
            return
        size = sequence.block_tokens
        end = sequence.computed // size
        oldest = max(sequence.rings_exact_from, sequence.computed - self._ring.rows)
        unit = range(max(0, end - UNIT_BLOCKS), end) if unit_end else range(0)
        first = min(sequence.rows_kept, unit.start) if unit_end and every else sequence.rows_kept
        for block in range(max(first, -(-oldest // size)), end) if every else unit:
            if block * size >= oldest:
                self._keep(sequence, block, unit_end=block in unit)
        sequence.rows_kept = end

    def _keep(self, sequence: Sequence, block: int, *, unit_end: bool) -> None:
        """Keep the ring's rows of one block; once in memory and once in the store."""
        assert sequence.seat is not None
        name = sequence.scope.retention_class
        known = self.memory.get(sequence.chain[block], name)
        if known is not None and known.stored:
            if unit_end and not known.unit_end:
                known.unit_end = True
                self._renew(sequence, [(block, known.data, known.created)])
            return
        data = self._ring.copy_out(sequence.seat, block) if known is None else known.data
        known = self.memory.put(sequence.chain[block], data, name, created=sequence.begun, unit_end=unit_end)
        stored = self._store.sidecars.put(
            sequence.chain[: block + 1],
            self._ring.kind,
            data,
            unit_end=unit_end,
            salt=sequence.request.salt,
            fingerprint=self._fingerprint,
            retention_class=name,
            created=sequence.begun,
        )
        if known is not None:
            known.stored = stored

    def forget(self, request_id: RequestId) -> None:
        search = self._searches.pop(request_id, None)
        if search is not None and search.future is not None:
            search.future.cancel()

    def clear(self) -> None:
        """What was kept may not be used any more (a purge)."""
        self.memory.clear()
        self._forget_all()

    def distrust(self, chain: Collection[BlockHash]) -> None:
        """Rows of these blocks may be wrong."""
        for block in chain:
            self.memory.drop(block)
        self._forget_all()

    def _forget_all(self) -> None:
        for request_id in list(self._searches):
            self.forget(request_id)
