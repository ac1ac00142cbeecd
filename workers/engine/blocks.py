"""The block pool: who owns a block, which blocks hold reusable prefixes, and which of them goes first when room is
needed.

A slot is in exactly one of three places: *free* (its bytes mean nothing), *referenced* by one or more requests
(published or not), or *idle* (referenced by nobody, published under its hash, waiting to be hit or evicted). A full
block is published after the pass that filled it, unless that pass went wrong. Idle blocks leave in order of last use;
a request gives its blocks back tail first, so that a chain goes from its end. Where two requests computed one prefix at
once, the children of either may outlive a parent published by the other: nobody finds them until the parent is
published again, and they leave in their turn. Looking up is not using.

Retention and purges apply here as they do to the KV store (`workers.engine.claims`).
"""

from __future__ import annotations

import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Sequence

from workers.engine.claims import NOBODY, Claims, Life, Scope
from workers.identity import BlockHash


class OutOfBlocks(Exception):
    """Asked for more blocks than `available`: a caller that did not check."""


class BlockPool:
    """`on_reuse(slot)` is called when a slot gets a new owner and its old bytes stop meaning anything; `clock` gives
    monotonic seconds.
    """

    def __init__(
        self, total: int, on_reuse: Callable[[int], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.total = total
        self._on_reuse = on_reuse
        self._clock = clock
        self._claims = Claims()
        self._free = list(range(total - 1, -1, -1))
        self._references = [0] * total
        self._hashes: list[BlockHash | None] = [None] * total
        self._by_hash: dict[BlockHash, int] = {}
        self._idle: OrderedDict[int, None] = OrderedDict()
        self._reserved = 0
        self.forgotten = 0
        """How many published blocks ceased to be; while it stands still, what `lookup` found stays true."""

    @property
    def available(self) -> int:
        """Blocks that can be promised to somebody: free or idle, and not reserved."""
        return len(self._free) + len(self._idle) - self._reserved

    @property
    def used(self) -> int:
        """Blocks referenced by requests."""
        return self.total - len(self._free) - len(self._idle)

    @property
    def cached(self) -> int:
        """Idle blocks that hold reusable prefixes."""
        return len(self._idle)

    def lookup(self, hashes: Iterable[BlockHash]) -> list[int]:
        """Slots of the longest leading run of `hashes` that is here. Changes nothing. O(length of the run)."""
        slots: list[int] = []
        for wanted in hashes:
            slot = self._by_hash.get(wanted)
            if slot is None:
                break
            slots.append(slot)
        return slots

    def fits(self, hits: Sequence[int], new: int) -> bool:
        """Whether `hits` can be acquired and `new` blocks more allocated or reserved."""
        return new + sum(1 for slot in hits if not self._references[slot]) <= self.available

    def acquire(self, slots: Iterable[int]) -> None:
        """One reference more on published blocks."""
        for slot in slots:
            assert self._hashes[slot] is not None, "only published blocks are shared"
            self._idle.pop(slot, None)
            self._references[slot] += 1

    def reserve(self, count: int) -> None:
        """Promise `count` blocks that are taken later. Raises OutOfBlocks."""
        if count > self.available:
            raise OutOfBlocks(f"{count} blocks wanted, {self.available} available")
        self._reserved += count

    def unreserve(self, count: int) -> None:
        assert 0 <= count <= self._reserved
        self._reserved -= count

    def allocate(self, count: int, *, reserved: bool = False) -> list[int]:
        """`count` blocks with one reference each, evicting idle ones where none are free; out of an earlier
        `reserve` or not. Raises OutOfBlocks.
        """
        if reserved:
            self.unreserve(count)
        if count > self.available:
            raise OutOfBlocks(f"{count} blocks wanted, {self.available} available")
        return [self._take() for _ in range(count)]

    def _take(self) -> int:
        slot = self._free.pop() if self._free else self._evict()
        self._references[slot] = 1
        self._on_reuse(slot)
        return slot

    def _evict(self) -> int:
        slot, _ = self._idle.popitem(last=False)
        self._forget(slot)
        return slot

    def _forget(self, slot: int) -> None:
        known = self._hashes[slot]
        assert known is not None
        del self._by_hash[known]
        self._hashes[slot] = None
        self._claims.drop(slot)
        self.forgotten += 1

    def publish(self, slot: int, block: BlockHash, scope: Scope = NOBODY) -> bool:
        """Make a referenced block findable, and claim it. False where the pool already has that content in another
        slot: that one is claimed, and this one stays its owner's alone.
        """
        assert self._references[slot] > 0
        assert self._hashes[slot] is None
        known = self._by_hash.get(block)
        self._claims.use(slot if known is None else known, scope, self._clock())
        if known is not None:
            return False
        self._by_hash[block] = slot
        self._hashes[slot] = block
        return True

    def unpublish(self, slots: Iterable[int]) -> None:
        """Referenced blocks whose bytes turned out wrong: nobody finds them any more, and they are free when their
        owners give them back. Those that were never published are left as they are.
        """
        for slot in slots:
            assert self._references[slot] > 0
            if self._hashes[slot] is not None:
                self._forget(slot)

    def pin(self, slots: Iterable[int]) -> None:
        """One reference more on blocks that somebody holds, published or not: their bytes stay until `release`."""
        for slot in slots:
            assert self._references[slot] > 0
            self._references[slot] += 1

    def release(self, slots: Sequence[int], scope: Scope = NOBODY) -> None:
        """One reference less on a request's blocks, given in the order of its tokens. Used until now by `scope`."""
        now = self._clock()
        for slot in reversed(slots):
            assert self._references[slot] > 0
            if self._hashes[slot] is not None:
                self._claims.use(slot, scope, now)
            self._references[slot] -= 1
            if self._references[slot]:
                continue
            if self._hashes[slot] is not None and self._claims.lapsed(slot):
                self._forget(slot)  # its claims ended while it was in use: nobody would end it later
            if self._hashes[slot] is None:
                self._free.append(slot)
            else:
                self._idle[slot] = None

    def expire(self, life: Life) -> int:
        """Forget what nobody uses and no class claims any more; how many blocks went. O(of those)."""
        idle = [slot for slot in self._claims.end_old(life, self._clock()) if slot in self._idle]
        return self._lose(idle)

    def purge_tenant(self, tenant: str) -> int:
        """Nobody finds a tenant's blocks any more, those that are in use included; how many."""
        return self._lose(self._claims.of_tenant(tenant))

    def purge_class(self, retention_class: str) -> int:
        """The same for blocks that only this class claims."""
        return self._lose(self._claims.end_class(retention_class))

    def purge(self) -> int:
        """The same for all."""
        return self._lose(list(self._by_hash.values()))

    def _lose(self, slots: Iterable[int]) -> int:
        lost = [slot for slot in slots if self._hashes[slot] is not None]
        for slot in lost:
            self._forget(slot)
            if slot in self._idle:
                del self._idle[slot]
                self._free.append(slot)
        return len(lost)

    def check(self, owners: Iterable[Sequence[int]], reserved: int) -> None:
        """Raise AssertionError unless every slot is in one place and counted as often as `owners` hold it."""
        held: Counter[int] = Counter()
        for slots in owners:
            held.update(slots)
        free, idle = set(self._free), set(self._idle)
        assert len(free) == len(self._free), "a slot is free twice"
        for slot in range(self.total):
            places = (slot in free) + (slot in idle) + (self._references[slot] > 0)
            assert places == 1, f"slot {slot} is in {places} places"
            assert self._references[slot] == held[slot], (
                f"slot {slot} counts {self._references[slot]} references, {held[slot]} are held"
            )
            assert (slot not in idle) or self._hashes[slot] is not None, f"slot {slot} is idle without a hash"
            assert (slot not in free) or self._hashes[slot] is None, f"slot {slot} is free with a hash"
        assert self._by_hash == {h: slot for slot, h in enumerate(self._hashes) if h is not None}
        assert self._reserved == reserved, f"{self._reserved} blocks reserved, {reserved} promised"
        assert self.available >= 0, "more is promised than there is"
