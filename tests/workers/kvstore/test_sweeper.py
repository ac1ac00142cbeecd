"""Retention: lives, budgets, priorities and pins; how much goes, and in which order."""

from __future__ import annotations

import msgspec
import pytest

from tests.workers.kvstore.factories import StoreFactory, make_chain, policy, put, served, set_policy, use
from workers.kvstore.clock import ManualClock
from workers.kvstore.health import Trouble
from workers.kvstore.policy import Pin, RetentionClass, RetentionPolicy
from workers.kvstore.store import Store
from workers.kvstore.sweeper import SweepReport

pytestmark = pytest.mark.integration


def sweep(store: Store) -> SweepReport:
    report = store.sweep()
    assert report is not None
    return report


def files(store: Store) -> int:
    return len(list(store.root.walk()))


def held_bytes(store: Store) -> int:
    return sum(path.stat().st_size for path in store.root.extents.rglob("*.kvx"))


def write_chains(store: Store, clock: ManualClock, count: int, retention_class: str = "agent", first: int = 0) -> list:
    """Chains of one extent of ten blocks each, a second apart."""
    chains = [make_chain(10, start=1000 * (first + n)) for n in range(count)]
    for blocks in chains:
        put(store, blocks, retention_class=retention_class)
        clock.advance(1)
    return chains


def test_expiry_is_judged_at_the_lookup_in_every_process(stores: StoreFactory, clock: ManualClock) -> None:
    one, two = stores.open(), stores.open()
    set_policy(one, policy(1, agent_ttl_s=100))
    blocks = make_chain(5)
    put(one, blocks)
    clock.advance(100)
    assert (one.find(blocks).blocks, two.find(blocks).blocks) == (5, 5)
    clock.advance(0.001)
    assert (one.find(blocks).blocks, two.find(blocks).blocks) == (0, 0)
    assert served(two, blocks) == 0


def test_a_new_policy_counts_from_the_next_lookup_on_and_back(stores: StoreFactory, clock: ManualClock) -> None:
    one, two = stores.open(), stores.open()
    set_policy(one, policy(1, agent_ttl_s=1000))
    blocks = make_chain(5)
    put(one, blocks)
    clock.advance(500)
    set_policy(one, policy(2, agent_ttl_s=400))
    assert two.find(blocks).blocks == 0
    set_policy(one, policy(3, agent_ttl_s=1000))
    assert two.find(blocks).blocks == 5
    set_policy(one, policy(4, agent_ttl_s=400))
    assert sweep(two).expired_blocks == 5
    set_policy(one, policy(5, agent_ttl_s=1000))
    assert two.find(blocks).blocks == 0  # swept is swept
    assert files(one) == 0


def test_an_older_policy_is_not_taken(stores: StoreFactory) -> None:
    store = stores.open()
    set_policy(store, policy(5))
    with pytest.raises(AssertionError):
        set_policy(store, policy(4, agent_ttl_s=1))
    assert store.find(make_chain(1)).reason == ""
    assert store.policy.current.version == 5


def test_what_two_classes_use_lives_until_the_last_lets_go(stores: StoreFactory, clock: ManualClock) -> None:
    store = stores.open()
    set_policy(store, policy(1, agent_ttl_s=100, chat_ttl_s=300))
    blocks = make_chain(5)
    put(store, blocks)
    use(store, blocks, "chat")
    clock.advance(200)
    report = sweep(store)
    assert (report.claims, report.expired_blocks) == (1, 0)
    assert served(store, blocks) == 5
    clock.advance(101)
    assert store.find(blocks).blocks == 0
    assert sweep(store).expired_blocks == 5


def test_lookups_renew_nothing(stores: StoreFactory, clock: ManualClock) -> None:
    store = stores.open()
    set_policy(store, policy(1, agent_ttl_s=100))
    blocks = make_chain(5)
    put(store, blocks)
    for _ in range(5):
        clock.advance(25)
        served(store, blocks)
    assert sweep(store).expired_blocks == 5


def test_a_use_in_between_saves_a_claim_from_the_sweep(stores: StoreFactory, clock: ManualClock) -> None:
    store = stores.open()
    set_policy(store, policy(1, agent_ttl_s=100))
    kept, gone = write_chains(store, clock, 2)
    clock.advance(98)
    use(store, kept)
    clock.advance(10)
    assert sweep(store).expired_blocks == 10
    assert (served(store, kept), served(store, gone)) == (10, 0)


@pytest.mark.parametrize("watermark", [0.8, 0.95, 1.0])
def test_the_total_budget_frees_as_much_as_it_says(stores: StoreFactory, clock: ManualClock, watermark: float) -> None:
    store = stores.open()
    chains = write_chains(store, clock, 40)
    each = held_bytes(store) / 40
    budget = int(30.5 * each)
    set_policy(store, policy(1, agent_ttl_s=1e6, total_bytes=budget, low_watermark=watermark))
    report = sweep(store)
    assert report.evicted_bytes == pytest.approx(40 * each - held_bytes(store), abs=1)
    assert watermark * budget - each < held_bytes(store) <= watermark * budget
    kept = [served(store, blocks) for blocks in chains]
    gone = kept.count(0)
    assert kept == [0] * gone + [10] * (40 - gone)  # least recently used first
    assert sweep(store).evicted_blocks == 0


def test_what_expired_goes_before_what_was_used(stores: StoreFactory, clock: ManualClock) -> None:
    store = stores.open()
    old = write_chains(store, clock, 5, "agent")
    clock.advance(1000)
    new = write_chains(store, clock, 5, "chat", first=10)
    set_policy(
        store, policy(1, agent_ttl_s=500, chat_ttl_s=500, total_bytes=held_bytes(store) // 2 + 100, low_watermark=1.0)
    )
    report = sweep(store)
    assert (report.expired_blocks, report.evicted_blocks) == (50, 0)
    assert [served(store, blocks) for blocks in old + new] == [0] * 5 + [10] * 5


def test_tails_go_before_heads(stores: StoreFactory, clock: ManualClock) -> None:
    store = stores.open()
    blocks = make_chain(50)
    for end in range(10, 60, 10):
        put(store, blocks[:end], start=end - 10)
    use(store, blocks)
    for left in (40, 30, 20, 10):
        budget = held_bytes(store) - 1
        set_policy(store, policy(60 - left, agent_ttl_s=1e6, total_bytes=budget, low_watermark=1.0))
        assert sweep(store).evicted_blocks == 10
        assert served(store, blocks) == left


def test_a_class_over_its_budget_lets_go_and_others_do_not(stores: StoreFactory, clock: ManualClock) -> None:
    store = stores.open()
    agents = write_chains(store, clock, 10, "agent")
    chats = write_chains(store, clock, 10, "chat", first=20)
    use(store, agents[0], "chat")
    each = held_bytes(store) // 20
    classes = (
        RetentionClass(name="agent", ttl_s=1e6, byte_budget=6 * each + each // 2),
        RetentionClass(name="chat", ttl_s=1e6),
    )
    set_policy(store, RetentionPolicy(version=1, classes=classes, low_watermark=1.0))
    report = sweep(store)
    assert report.claims == 4
    assert report.evicted_blocks == 30  # the oldest is chat's as well
    assert [served(store, blocks) for blocks in agents] == [10, 0, 0, 0, 10, 10, 10, 10, 10, 10]
    assert [served(store, blocks) for blocks in chats] == [10] * 10


def test_lower_priority_goes_first(stores: StoreFactory, clock: ManualClock) -> None:
    store = stores.open()
    agents = write_chains(store, clock, 5, "agent")
    chats = write_chains(store, clock, 5, "chat", first=20)
    classes = (RetentionClass(name="agent", ttl_s=1e6, priority=1), RetentionClass(name="chat", ttl_s=1e6))
    budget = held_bytes(store) * 75 // 100
    set_policy(store, RetentionPolicy(version=1, classes=classes, low_watermark=1.0, total_bytes=budget))
    assert sweep(store).evicted_blocks == 30
    assert [served(store, blocks) for blocks in agents] == [10] * 5
    assert [served(store, blocks) for blocks in chats] == [0, 0, 0, 10, 10]


def test_pins_outlive_everything_and_end(stores: StoreFactory, clock: ManualClock) -> None:
    store = stores.open()
    blocks, other = make_chain(30), make_chain(10, start=5000)
    for end in (10, 20, 30):
        put(store, blocks[:end], start=end - 10)
    put(store, other)
    pinned = policy(1, agent_ttl_s=10, pins=(Pin(name="system prompt", tip=blocks[19].hex()),))
    set_policy(store, pinned)
    sweep(store)
    clock.advance(1000)
    assert served(store, blocks) == 20
    assert sweep(store).expired_blocks == 20
    assert served(store, blocks) == 20
    set_policy(store, msgspec.structs.replace(pinned, version=2, total_bytes=10))
    report = sweep(store)
    assert served(store, blocks) == 20
    assert report.over_budget
    assert store.health.has(Trouble.OVER_BUDGET)
    set_policy(store, policy(3, agent_ttl_s=10))
    sweep(store)
    assert (served(store, blocks), files(store)) == (0, 0)
    assert not store.health.has(Trouble.OVER_BUDGET)


def test_the_index_is_kept_below_its_bound(stores: StoreFactory, clock: ManualClock) -> None:
    roomy = stores.open()
    write_chains(roomy, clock, 10)
    small = stores.open(most_blocks=60)
    set_policy(small, policy(1, agent_ttl_s=1e6, low_watermark=0.5))
    assert sweep(small).evicted_blocks == 70
    assert files(small) == 3


def test_sizes_add_up_and_nothing_is_left(stores: StoreFactory, clock: ManualClock) -> None:
    store = stores.open()
    set_policy(store, policy(1, agent_ttl_s=100, chat_ttl_s=100))
    write_chains(store, clock, 5, "agent")
    write_chains(store, clock, 5, "chat", first=20)
    client, key = store.index.client, store.index.key
    assert int(client.hget(key("size", "bytes"), "total")) == held_bytes(store)
    assert int(client.hget(key("size", "blocks"), "total")) == 100
    clock.advance(1000)
    sweep(store)
    left = {name.decode().removeprefix(stores.namespace + ":").split(":")[0] for name in client.keys(key("*"))}
    assert left <= {"meta", "policy", "classes", "h", "gone", "gz", "gn"}
    assert (files(store), held_bytes(store)) == (0, 0)


def test_ghosts_are_bounded(stores: StoreFactory, clock: ManualClock) -> None:
    store = stores.open(ghosts=3)
    set_policy(store, policy(1, agent_ttl_s=10))
    write_chains(store, clock, 8)
    clock.advance(100)
    sweep(store)
    assert store.index.client.zcard(store.index.key("gz", "agent")) == 3
    assert store.index.client.hlen(store.index.key("gn", "agent")) == 3


def test_one_process_sweeps_at_a_time(stores: StoreFactory) -> None:
    one, two = stores.open(), stores.open()
    with one.index.exclusive("sweep", seconds=60) as mine:
        assert mine
        assert two.sweep() is None
    assert two.sweep() is not None


def test_removals_that_broke_off_are_finished(stores: StoreFactory, clock: ManualClock) -> None:
    store = stores.open()
    blocks = make_chain(5)
    put(store, blocks)
    store.index.forget([store.find(blocks).runs[0].extent], reason="corrupt")
    assert files(store) == 1
    assert sweep(store).files_removed == 1
    assert files(store) == 0
