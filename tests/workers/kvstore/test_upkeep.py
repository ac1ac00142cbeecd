from __future__ import annotations

import os
import threading

import pytest

from tests.workers.kvstore.factories import IDENTITY, SALT, StoreFactory, fork, make_chain, payload, put, served, use
from workers.kvstore.clock import ManualClock
from workers.kvstore.extent import salt_id
from workers.kvstore.store import Store

pytestmark = pytest.mark.integration

OTHER_SALT = SALT[::-1]


def lose_index(store: Store) -> None:
    keys = store.index.client.keys(store.index.key("*"))
    if keys:
        store.index.client.delete(*keys)


def test_a_lost_index_is_rebuilt_from_headers(stores: StoreFactory, clock: ManualClock) -> None:
    store = stores.open()
    blocks = make_chain(30)
    for end in (10, 20, 30):
        put(store, blocks[:end], start=end - 10)
    branch = fork(blocks[:15], 5, start=7000)
    put(store, branch, retention_class="chat")
    store.sidecars.put(
        blocks, "window.v1", b"w" * 99, unit_end=True, salt=SALT, fingerprint="f", retention_class="agent"
    )
    assert store.flush()
    lose_index(store)
    assert store.find(blocks).reason == "index_lost"
    store.maintenance.look()
    assert (served(store, blocks), served(store, branch)) == (30, 20)
    assert store.sidecars.get(blocks, [29], "window.v1", retention_class="agent") == {29: b"w" * 99}
    ages = [next(iter(run.claims.values())) for run in store.find(blocks).runs]
    assert ages == sorted(ages, reverse=True)


def test_last_use_is_the_files_time_and_heads_never_look_older(stores: StoreFactory, clock: ManualClock) -> None:
    store = stores.open()
    blocks = make_chain(20)
    put(store, blocks[:10])
    clock.advance(1800)
    put(store, blocks, start=10)  # touches the head, whose file keeps its time
    lose_index(store)
    store.maintenance.look()
    head, tail = (run.claims["agent"] for run in store.find(blocks).runs)
    assert tail == store.index.now_us() - 10
    assert head > tail


def test_uses_renew_file_times_now_and_then(stores: StoreFactory, clock: ManualClock) -> None:
    store = stores.open()
    blocks = make_chain(5)
    put(store, blocks)
    path = store.root.where(store.find(blocks).runs[0].extent)
    clock.advance(60)
    use(store, blocks)
    assert path.stat().st_mtime == clock.now() - 60
    clock.advance(7200)
    use(store, blocks)
    assert path.stat().st_mtime == clock.now()


def test_verify_finds_rot_orphans_and_holes(stores: StoreFactory, clock: ManualClock) -> None:
    store = stores.open()
    chains = [make_chain(5, start=1000 * n) for n in range(5)]
    for blocks in chains:
        put(store, blocks)
    clock.advance(100)
    rotten, orphan, hole, headless, fine = (store.find(blocks).runs[0].extent for blocks in chains)
    for extent, position in ((rotten, -1), (headless, 30)):
        data = bytearray(store.root.where(extent).read_bytes())
        data[position] ^= 1
        store.root.where(extent).write_bytes(data)
    kept = store.root.where(orphan).read_bytes()
    store.index.forget([orphan], reason="test")
    assert store.sweep() is not None
    store.root.where(orphan).write_bytes(kept)
    os.utime(store.root.where(orphan), (clock.now() - 90, clock.now() - 90))
    store.root.remove(hole)
    store_id = store.maintenance.store_id
    report = store.upkeep.verify(store_id)
    assert sorted(report.corrupt) == sorted([rotten.hex(), headless.hex()])
    assert (report.orphans, report.missing) == ([orphan.hex()], [hole.hex()])
    assert store.upkeep.verify(store_id, repair=True).repaired == 4
    clean = store.upkeep.verify(store_id)
    assert (clean.corrupt, clean.orphans, clean.missing, clean.extents) == ([], [], [], 2)
    assert [served(store, blocks) for blocks in chains] == [0, 5, 0, 0, 5]
    assert fine


def test_purging_a_tenant_leaves_the_others(stores: StoreFactory) -> None:
    store = stores.open()
    ours, theirs = make_chain(5), make_chain(5, salt=OTHER_SALT)
    put(store, ours)
    put(store, theirs, salt=OTHER_SALT)
    report = store.upkeep.purge(salt_id=salt_id(SALT))
    assert report.extents == 1
    assert (served(store, ours), served(store, theirs)) == (0, 5)
    assert store.sweep() is not None
    assert len(list(store.root.walk())) == 1


def test_purging_a_model_takes_its_orphans_too(stores: StoreFactory) -> None:
    store = stores.open()
    put(store, make_chain(5), fingerprint="one")
    put(store, make_chain(5, start=100), fingerprint="two")
    lose_index(store)
    store.index.adopt(store.maintenance.store_id)
    assert store.upkeep.purge(fingerprint="one").unindexed == 1
    store.upkeep.rebuild(store.maintenance.store_id)
    assert (served(store, make_chain(5)), served(store, make_chain(5, start=100))) == (0, 5)


def test_purging_a_class_spares_what_others_use(stores: StoreFactory) -> None:
    store = stores.open()
    shared, alone = make_chain(5), make_chain(5, start=100)
    put(store, shared)
    put(store, alone)
    use(store, shared, "chat")
    report = store.upkeep.purge(retention_class="agent")
    assert (report.claims, report.extents) == (2, 1)
    assert (served(store, shared), served(store, alone)) == (5, 0)


def test_writes_handed_over_before_a_purge_are_void(stores: StoreFactory, clock: ManualClock) -> None:
    store = stores.open()
    hold = threading.Event()
    first, second = make_chain(3, salt=OTHER_SALT), make_chain(3)
    arguments = {"fingerprint": IDENTITY.fingerprint(), "retention_class": "agent"}
    store.put_run(
        first,
        0,
        [payload(b) for b in first],
        salt=OTHER_SALT,
        done=lambda: hold.wait(10),
        **arguments,  # type: ignore[arg-type]
    )
    store.put_run(second, 0, [payload(b) for b in second], salt=SALT, **arguments)
    store.upkeep.purge(salt_id=salt_id(SALT))
    hold.set()
    assert store.flush()
    assert (served(store, first), served(store, second)) == (3, 0)
    assert store.status().counters["writes_dropped_purged"] == 1
    clock.advance(1)
    put(store, second)
    assert served(store, second) == 3


def test_a_purge_has_one_scope(stores: StoreFactory) -> None:
    store = stores.open()
    with pytest.raises(ValueError, match="exactly one"):
        store.upkeep.purge()
    with pytest.raises(ValueError, match="exactly one"):
        store.upkeep.purge(salt_id="a", fingerprint="b")
