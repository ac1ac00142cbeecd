from __future__ import annotations

import threading
import time

import pytest

from tests.workers.kvstore.factories import IDENTITY, SALT, StoreFactory, make_chain, payload, put, served
from workers.identity import BlockHash
from workers.kvstore import writing
from workers.kvstore.clock import ManualClock
from workers.kvstore.store import Store

pytestmark = pytest.mark.integration


def hand_over(store: Store, blocks: list[BlockHash], start: int = 0, size: int = 512, **more: object) -> bool:
    return store.put_run(
        blocks,
        start,
        [payload(block, size) for block in blocks[start:]],
        salt=SALT,
        fingerprint=IDENTITY.fingerprint(),
        retention_class="agent",
        **more,  # type: ignore[arg-type]
    )


def test_a_full_queue_drops_and_counts_and_nobody_waits(stores: StoreFactory) -> None:
    store = stores.open(write_queue_bytes=10_000)
    hold, chains = threading.Event(), [make_chain(8, start=100 * n) for n in range(10)]
    assert hand_over(store, chains[0], done=lambda: hold.wait(10))
    time.sleep(0.05)
    accepted = [hand_over(store, blocks) for blocks in chains[1:]]
    assert accepted.count(True) in (1, 2)
    assert store.status().counters["writes_dropped_queue"] == accepted.count(False)
    assert store.status().write_bytes_waiting <= 10_000
    hold.set()
    assert store.flush()
    assert [served(store, blocks) for blocks in chains[1:]] == [8 if ok else 0 for ok in accepted]


def test_borrowed_bytes_are_given_back_whatever_happens(stores: StoreFactory) -> None:
    store = stores.open(write_queue_bytes=1000)
    given: list[str] = []
    assert hand_over(store, make_chain(1), done=lambda: given.append("written"))
    assert store.flush()
    assert not hand_over(store, make_chain(4, start=50), done=lambda: given.append("dropped"))
    assert given == ["written", "dropped"]


def test_blocks_wait_for_ancestors_that_another_process_is_writing(stores: StoreFactory) -> None:
    early, late = stores.open(), stores.open()
    chain = make_chain(8)
    assert hand_over(early, chain, start=4)
    time.sleep(0.15)
    put(late, chain[:4])
    assert early.flush()
    assert served(late, chain) == 8


def test_copied_bytes_may_change_at_once(stores: StoreFactory) -> None:
    store = stores.open()
    blocks = make_chain(4)
    arena = [bytearray(payload(block)) for block in blocks]
    store.put_run(
        blocks,
        0,
        [memoryview(slot) for slot in arena],
        salt=SALT,
        fingerprint=IDENTITY.fingerprint(),
        retention_class="agent",
    )
    for slot in arena:
        slot[:] = bytes(len(slot))
    assert store.flush()
    assert served(store, blocks) == 4


def test_blocks_whose_ancestors_went_are_dropped(stores: StoreFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "ORPHAN_PATIENCE_S", 0.1)
    store = stores.open()
    assert hand_over(store, make_chain(8), start=4)
    assert store.flush()
    assert store.status().counters["writes_dropped_orphan"] == 1
    assert not list(store.root.walk())


def test_of_two_writers_of_the_same_run_one_keeps_its_file(stores: StoreFactory) -> None:
    one, two = stores.open(), stores.open()
    blocks = make_chain(40)
    start = threading.Barrier(2)

    def write(store: Store) -> None:
        start.wait(10)
        hand_over(store, blocks)
        assert store.flush()

    threads = [threading.Thread(target=write, args=(store,)) for store in (one, two)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert served(one, blocks) == 40
    assert len(list(one.root.walk())) == 1


def test_the_index_has_a_bound(stores: StoreFactory) -> None:
    store = stores.open(most_blocks=10)
    put(store, make_chain(8))
    put(store, make_chain(8, start=100))
    assert store.status().counters["writes_dropped_full"] == 1
    assert len(list(store.root.walk())) == 1


def test_a_write_that_comes_too_late_is_dropped(stores: StoreFactory) -> None:
    store = stores.open(write_deadline_s=-1.0)
    hand_over(store, make_chain(2))
    assert store.flush()
    assert store.status().counters["writes_dropped_deadline"] == 1


def test_an_expired_extent_that_still_lies_there_comes_back_when_it_is_written_again(
    stores: StoreFactory, clock: ManualClock
) -> None:
    store = stores.open()
    blocks = make_chain(4)
    put(store, blocks)
    clock.advance(73 * 3600)
    assert store.find(blocks).blocks == 0
    put(store, blocks)
    assert served(store, blocks) == 4
    assert store.status().counters["extents_written"] == 1


class Uncopied(bytearray):
    def __bytes__(self) -> bytes:
        raise AssertionError("copied for a queue that has no room")


def test_what_the_queue_has_no_room_for_is_not_copied(stores: StoreFactory) -> None:
    store = stores.open(write_queue_bytes=1000)
    blocks = make_chain(2)
    assert not store.put_run(
        blocks,
        0,
        [Uncopied(600), Uncopied(600)],
        salt=SALT,
        fingerprint=IDENTITY.fingerprint(),
        retention_class="agent",
    )
    assert store.status().counters["writes_dropped_queue"] == 1
