from __future__ import annotations

import hashlib
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

from workers.engine.blocks import BlockPool, OutOfBlocks
from workers.engine.claims import Scope
from workers.identity import BlockHash

TOTAL = 12


def chain_of(path: tuple[int, ...]) -> list[BlockHash]:
    return [BlockHash(hashlib.sha256(bytes(path[: n + 1])).digest()) for n in range(len(path))]


def make_pool(total: int = TOTAL) -> tuple[BlockPool, list[int]]:
    generations = [0] * total

    def bump(slot: int) -> None:
        generations[slot] += 1

    return BlockPool(total, bump), generations


def filled(pool: BlockPool, path: tuple[int, ...]) -> list[int]:
    """A request that found what it could, computed and published the rest."""
    chain = chain_of(path)
    hits = pool.lookup(chain)
    pool.acquire(hits)
    slots = hits + pool.allocate(len(path) - len(hits))
    for index in range(len(hits), len(path)):
        pool.publish(slots[index], chain[index])
    return slots


def test_published_blocks_are_found_after_release() -> None:
    pool, _ = make_pool()
    slots = filled(pool, (1, 2, 3))
    pool.release(slots)
    assert pool.lookup(chain_of((1, 2, 3, 4))) == slots
    assert (pool.used, pool.cached, pool.available) == (0, 3, TOTAL)


def test_unpublished_blocks_are_forgotten() -> None:
    pool, _ = make_pool()
    pool.release(pool.allocate(3))
    assert (pool.used, pool.cached) == (0, 0)


def test_tails_go_before_heads_and_old_chains_before_new() -> None:
    pool, _ = make_pool(6)
    old, new = filled(pool, (1, 2, 3)), filled(pool, (4, 5, 6))
    pool.release(old)
    pool.release(new)
    pool.allocate(2)
    assert pool.lookup(chain_of((1, 2, 3))) == old[:1]
    assert pool.lookup(chain_of((4, 5, 6))) == new


def test_looking_up_is_not_using() -> None:
    pool, _ = make_pool(2)
    first, second = filled(pool, (1,)), filled(pool, (2,))
    pool.release(first)
    pool.release(second)
    pool.lookup(chain_of((1,)))
    pool.allocate(1)
    assert pool.lookup(chain_of((1,))) == []
    assert pool.lookup(chain_of((2,))) == second


def test_using_makes_young() -> None:
    pool, _ = make_pool(2)
    first, second = filled(pool, (1,)), filled(pool, (2,))
    pool.release(first)
    pool.release(second)
    pool.acquire(first)
    pool.release(first)
    pool.allocate(1)
    assert pool.lookup(chain_of((1,))) == first
    assert pool.lookup(chain_of((2,))) == []


def test_a_generation_changes_with_the_owner_only() -> None:
    pool, generations = make_pool(1)
    slots = filled(pool, (1,))
    assert generations == [1]
    pool.release(slots)
    pool.acquire(slots)
    pool.release(slots)
    assert generations == [1]
    pool.allocate(1)
    assert generations == [2]


def test_equal_content_is_published_once() -> None:
    pool, _ = make_pool()
    (hashed,) = chain_of((1,))
    one, two = pool.allocate(2)
    assert pool.publish(one, hashed)
    assert not pool.publish(two, hashed)
    pool.release([two])
    assert pool.lookup([hashed]) == [one]
    pool.check([[one]], 0)


def test_reserved_blocks_are_nobody_elses() -> None:
    pool, _ = make_pool(4)
    pool.reserve(3)
    assert pool.available == 1
    with pytest.raises(OutOfBlocks):
        pool.allocate(2)
    assert len(pool.allocate(3, reserved=True)) == 3
    with pytest.raises(OutOfBlocks):
        pool.reserve(2)


def test_hits_that_are_idle_count_against_the_room() -> None:
    pool, _ = make_pool(4)
    slots = filled(pool, (1, 2))
    pool.release(slots)
    assert pool.fits(slots, 2)
    assert not pool.fits(slots, 3)


def test_a_purge_forgets_everything_and_frees_what_nobody_holds() -> None:
    pool, _ = make_pool()
    held, idle = filled(pool, (1, 2)), filled(pool, (3, 4))
    pool.release(idle)
    assert pool.purge() == 4
    assert pool.lookup(chain_of((3, 4))) == pool.lookup(chain_of((1, 2))) == []
    pool.check([held], 0)
    assert pool.available == TOTAL - 2


AGENT, CHAT, OTHER = Scope("agent", "t1"), Scope("chat", "t1"), Scope("chat", "t2")
LIVES = {"agent": 10.0, "chat": 100.0}


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def used(pool: BlockPool, path: tuple[int, ...], scope: Scope) -> None:
    """A request of `scope` that came and went."""
    chain = chain_of(path)
    hits = pool.lookup(chain)
    pool.acquire(hits)
    slots = hits + pool.allocate(len(path) - len(hits))
    for index in range(len(hits), len(path)):
        pool.publish(slots[index], chain[index], scope)
    pool.release(slots, scope)


def test_a_block_lives_until_the_last_class_lets_go() -> None:
    clock = Clock()
    pool = BlockPool(TOTAL, lambda slot: None, clock)
    used(pool, (1, 2), AGENT)
    used(pool, (1,), CHAT)
    clock.now += 11
    assert pool.expire(LIVES.__getitem__) == 1
    assert len(pool.lookup(chain_of((1, 2)))) == 1
    clock.now += 100
    assert pool.expire(LIVES.__getitem__) == 1
    pool.check([], 0)
    assert pool.cached == 0


def test_a_use_renews_and_a_shorter_life_counts_at_once() -> None:
    clock = Clock()
    pool = BlockPool(TOTAL, lambda slot: None, clock)
    used(pool, (1, 2), AGENT)
    clock.now += 9
    used(pool, (1, 2), AGENT)
    clock.now += 9
    assert pool.expire(LIVES.__getitem__) == 0
    assert pool.expire(lambda name: 5.0) == 2


def test_what_is_held_is_in_use_and_expires_a_life_after_it_was_given_back() -> None:
    clock = Clock()
    pool = BlockPool(TOTAL, lambda slot: None, clock)
    used(pool, (1, 2), AGENT)
    slots = pool.lookup(chain_of((1, 2)))
    pool.acquire(slots)
    clock.now += 50
    assert pool.expire(LIVES.__getitem__) == 0
    assert pool.lookup(chain_of((1, 2))) == slots
    pool.release(slots, AGENT)
    clock.now += 9
    assert pool.expire(LIVES.__getitem__) == 0
    clock.now += 2
    assert pool.expire(LIVES.__getitem__) == 2


def test_what_a_write_still_held_when_its_last_claim_ended_goes_when_it_is_given_back() -> None:
    clock = Clock()
    pool = BlockPool(TOTAL, lambda slot: None, clock)
    used(pool, (1, 2), AGENT)
    slots = pool.lookup(chain_of((1, 2)))
    pool.acquire(slots)
    clock.now += 50
    assert pool.expire(LIVES.__getitem__) == 0
    forgotten = pool.forgotten
    pool.release(slots)  # by a write, which is nobody's use
    pool.check([], 0)
    assert pool.lookup(chain_of((1, 2))) == []
    assert (pool.cached, pool.forgotten) == (0, forgotten + 2)


def test_purges_reach_one_tenant_or_one_class() -> None:
    pool, _ = make_pool()
    used(pool, (1, 2), CHAT)
    used(pool, (3,), OTHER)
    used(pool, (4,), AGENT)
    assert pool.purge_tenant("t2") == 1
    assert pool.purge_class("agent") == 1
    assert len(pool.lookup(chain_of((1, 2)))) == 2
    assert pool.lookup(chain_of((3,))) == pool.lookup(chain_of((4,))) == []
    pool.check([], 0)


def test_pinned_blocks_keep_their_slot_until_they_are_given_back() -> None:
    pool, _ = make_pool(2)
    slots = filled(pool, (1, 2))
    pool.pin(slots)
    pool.release(slots)
    assert pool.available == 0
    pool.check([slots], 0)
    pool.release(slots)
    assert pool.available == 2


class PoolMachine(RuleBasedStateMachine):
    """Requests that come, grow out of a reservation and go: blocks are conserved, chains stay whole."""

    requests = Bundle("requests")

    def __init__(self) -> None:
        super().__init__()
        self.pool, _ = make_pool()
        self.live: dict[int, tuple[list[int], int]] = {}
        self.chains: list[list[BlockHash]] = []
        self.number = 0

    @rule(target=requests, path=st.lists(st.integers(0, 2), min_size=1, max_size=6), output=st.integers(0, 4))
    def start(self, path: list[int], output: int) -> Any:
        chain = chain_of(tuple(path))
        hits = self.pool.lookup(chain)
        if not self.pool.fits(hits, len(path) - len(hits) + output):
            return multiple()
        slots = filled(self.pool, tuple(path))
        self.pool.reserve(output)
        self.chains.append(chain)
        self.number += 1
        self.live[self.number] = (slots, output)
        return self.number

    @rule(request=requests)
    def grow(self, request: int) -> None:
        slots, reserved = self.live.get(request, ([], 0))
        if reserved:
            slots.extend(self.pool.allocate(1, reserved=True))
            self.live[request] = (slots, reserved - 1)

    @rule(request=consumes(requests))
    def end(self, request: int) -> None:
        slots, reserved = self.live.pop(request)
        self.pool.release(slots)
        self.pool.unreserve(reserved)

    @rule()
    def purge(self) -> None:
        self.pool.purge()

    @invariant()
    def conserved(self) -> None:
        self.pool.check((slots for slots, _ in self.live.values()), sum(reserved for _, reserved in self.live.values()))

    @invariant()
    def no_block_outlives_its_parent(self) -> None:
        for chain in self.chains:
            here = [bool(self.pool.lookup([block])) for block in chain]
            assert here == sorted(here, reverse=True)


TestPool = PoolMachine.TestCase
TestPool.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
