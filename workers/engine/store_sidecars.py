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
from collections import OrderedDict
from collections.abc import Collection
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass
from typing import Final

import torch

from workers.engine.layout import CacheLayout, PoolViews
from workers.engine.sequence import Phase, Sequence
from workers.engine.store_distrust import StoreDistrust
from workers.identity import BlockHash
from workers.kvstore.policy import sidecar_claim
from workers.kvstore.store import Store
from workers.models.base import StoredWindows
from workers.protocol import RequestId

log: Final = logging.getLogger(__name__)

UNIT_BLOCKS: Final = 2
"""Sidecars of a unit's last blocks: wherever the next prompt begins to run, they cover the positions before it."""


class Ring:
    """Copies rows of one window group between seats and sidecars: a sidecar is layer after layer, plane after plane,
    the rows of one block."""

    def __init__(self, layout: CacheLayout, views: PoolViews, stored: StoredWindows) -> None:
        group = next(group for group in layout.spec.windows if group.name == stored.group)
        assert group.rows >= 3 * stored.window - 1
        self.rows = group.rows
        self.block_tokens = layout.block_tokens
        self._views = [views.window(group.name, layer, p.name) for layer in group.layers for p in group.planes]
        self.sidecar_bytes = sum(_row_bytes(view) for view in self._views) * self.block_tokens
        self.kind = f"{group.name}.v{layout.spec.layout_version}.{self.sidecar_bytes}"

    def _places(self, block: int) -> torch.Tensor:
        first = block * self.block_tokens
        return torch.arange(first, first + self.block_tokens) % self.rows

    def copy_out(self, seat: int, block: int) -> bytes:
        places = self._places(block)
        parts = [view[seat, places].contiguous().view(torch.uint8).numpy().tobytes() for view in self._views]
        return b"".join(parts)

    def copy_in(self, seat: int, block: int, data: bytes) -> None:
        places, at = self._places(block), 0
        for view in self._views:
            size = _row_bytes(view) * self.block_tokens
            rows = torch.frombuffer(bytearray(data[at : at + size]), dtype=torch.uint8).view(view.dtype)
            view[seat, places] = rows.view(self.block_tokens, *view.shape[2:])
            at += size


def _row_bytes(view: torch.Tensor) -> int:
    return view[0, 0].numel() * view.element_size()


@dataclass(slots=True)
class _Kept:
    data: bytes
    retention_class: str
    last: float


class Memory:
    """Sidecars by block, the least recently used going first; they live as the policy says."""

    def __init__(self, store: Store, bound: int) -> None:
        self._store = store
        self._bound = bound
        self._kept: OrderedDict[BlockHash, _Kept] = OrderedDict()
        self._bytes = 0

    def put(self, block: BlockHash, data: bytes, retention_class: str) -> None:
        if self._store.policy.current.ttl_us(sidecar_claim(retention_class, unit_end=True)) < 0:
            return
        self.drop(block)
        self._kept[block] = _Kept(data, retention_class, time.monotonic())
        self._bytes += len(data)
        while self._bytes > self._bound:
            self.drop(next(iter(self._kept)))

    def get(self, block: BlockHash) -> bytes | None:
        kept = self._kept.get(block)
        if kept is None:
            return None
        now = time.monotonic()
        life = self._store.policy.current.ttl_us(sidecar_claim(kept.retention_class, unit_end=True))
        if (now - kept.last) * 1e6 > life:
            self.drop(block)
            return None
        kept.last = now
        self._kept.move_to_end(block)
        return kept.data

    def drop(self, block: BlockHash) -> None:
        kept = self._kept.pop(block, None)
        if kept is not None:
            self._bytes -= len(kept.data)

    def clear(self) -> None:
        self._kept.clear()
        self._bytes = 0


@dataclass(slots=True)
class _Search:
    """Looking for the sidecars that a hit of `hit` tokens can use."""

    hit: int
    future: Future[dict[int, bytes]] | None
    until: float
    found: dict[int, bytes]
    exact_from: int = 0
    """Ring rows from here on are exact, should the prompt begin where `resume` said last, without kept rows."""


class StoreSidecars:
    """On the engine's thread."""

    def __init__(self, store: Store, ring: Ring, window: int, distrust: StoreDistrust, *, fingerprint: str) -> None:
        self._store, self._ring, self._window, self._distrust = store, ring, window, distrust
        self._fingerprint = fingerprint
        self.memory = Memory(store, store.settings.sidecar_cache_bytes)
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
            return _Search(hit, None, until, {})
        size = sequence.block_tokens
        blocks = range(max(0, recompute_from - self._window) // size, (last - 1) // size + 1)
        kept = {block: data for block in blocks if (data := self.memory.get(sequence.chain[block])) is not None}
        here = self._start(sequence, hit, kept)
        trusted = self._distrust.trusted(sequence.chain[: blocks.stop]) == blocks.stop
        if (here is not None and here == last) or not trusted:
            return _Search(hit, None, until, kept)

        def choose(there: set[int]) -> list[int]:
            start = self._start(sequence, hit, there | kept.keys())
            return [] if start is None else [block for block in self._needed(start) if block not in kept]

        missing = [block for block in blocks if block not in kept]
        future = self._store.sidecars.fetch(
            sequence.chain[: blocks.stop],
            missing,
            self._ring.kind,
            retention_class=sequence.scope.retention_class,
            choose=choose,
        )
        return _Search(hit, future, until, kept)

    def _needed(self, start: int) -> range:
        """The blocks that hold the window - 1 positions before `start`."""
        size = self._ring.block_tokens
        return range(max(0, start - self._window + 1) // size, (start - 1) // size + 1)

    def _start(self, sequence: Sequence, hit: int, there: Collection[int]) -> int | None:
        """The last position that a prompt can begin from with the sidecars of these blocks."""
        size = self._ring.block_tokens
        last = min(hit, sequence.prompt_tokens - self._window)
        for start in (last, *range((last - 1) // size * size, 0, -size)):
            if start > 0 and all(block in there for block in self._needed(start)):
                return start
            if there and start // size < min(there):
                break
        return None

    def resume(self, sequence: Sequence, hit: int, recompute_from: int) -> int:
        """Where the prompt begins to run: where kept rows allow, if that is later than by recompute."""
        search = self._searches.get(sequence.request.request_id)
        if search is None or search.hit != hit:
            return recompute_from
        start = self._start(sequence, hit, search.found)
        if start is not None and start > recompute_from:
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
        start = self._start(sequence, search.hit, search.found)
        if start is None or start < min(search.hit, sequence.prompt_tokens - self._window):
            sequence.unit_at = search.hit
        if start == sequence.computed:
            assert sequence.seat is not None
            blocks = self._needed(sequence.computed)
            for block in blocks:
                self._ring.copy_in(sequence.seat, block, search.found[block])
                self.memory.put(sequence.chain[block], search.found[block], sequence.scope.retention_class)
            sequence.rings_from = blocks.start * sequence.block_tokens
            sequence.rings_exact_from = sequence.rings_from
            self.used += 1
        else:
            sequence.rings_exact_from = search.exact_from

    def keep(self, sequence: Sequence, *, unit_end: bool = True) -> None:
        """A unit ends with the last full block that the request computed: keep what its ring holds of it."""
        if sequence.seat is None or sequence.phase not in (Phase.PREFILL, Phase.DECODE):
            return
        size = sequence.block_tokens
        end = sequence.computed // size
        oldest = max(sequence.rings_exact_from, sequence.computed - self._ring.rows)
        for block in range(max(0, end - UNIT_BLOCKS), end):
            if block * size < oldest or self.memory.get(sequence.chain[block]) is not None:
                continue
            data = self._ring.copy_out(sequence.seat, block)
            self.memory.put(sequence.chain[block], data, sequence.scope.retention_class)
            self._store.sidecars.put(
                sequence.chain[: block + 1],
                self._ring.kind,
                data,
                unit_end=unit_end,
                salt=sequence.request.salt,
                fingerprint=self._fingerprint,
                retention_class=sequence.scope.retention_class,
                created=sequence.begun,
            )

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
