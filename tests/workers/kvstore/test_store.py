"""The store through its front door: what was written comes back, to those who may have it, and nobody else."""

from __future__ import annotations

import threading
from collections.abc import Callable

import msgspec
import pytest

from tests.workers.kvstore.factories import (
    IDENTITY,
    SALT,
    StoreFactory,
    fork,
    make_chain,
    payload,
    put,
    served,
    use,
)
from workers.kvstore.clock import ManualClock
from workers.kvstore.health import Trouble
from workers.kvstore.reads import MISS

pytestmark = pytest.mark.integration
Wait = Callable[[Callable[[], bool]], None]


def test_what_one_worker_wrote_another_hits(stores: StoreFactory) -> None:
    prefix = make_chain(12)
    put(stores.open(), prefix)
    other = stores.open()
    assert other.find(prefix).blocks == 12
    assert served(other, prefix) == 12
    assert other.status().ok


def test_a_hit_is_the_longest_common_prefix(stores: StoreFactory) -> None:
    store = stores.open()
    prefix = make_chain(10)
    put(store, prefix)
    branch = fork(prefix[:7], 5, start=900)
    assert store.find(branch).blocks == 7
    assert served(store, branch) == 7
    assert store.find(make_chain(10, start=500)).blocks == 0
    assert store.find([]).blocks == 0


def test_a_branch_in_the_middle_of_an_extent_becomes_an_extent_below_it(stores: StoreFactory) -> None:
    store = stores.open()
    prefix = make_chain(10)
    put(store, prefix)
    branch = fork(prefix[:7], 5, start=900)
    put(store, branch)
    assert served(store, branch) == 12
    assert served(store, prefix) == 10
    assert [(run.offset, run.count) for run in store.find(branch).runs] == [(0, 7), (0, 5)]


def test_only_what_is_missing_is_written(stores: StoreFactory) -> None:
    store = stores.open()
    prefix = make_chain(10)
    put(store, prefix[:6])
    put(store, prefix)
    put(store, prefix)
    counters = store.status().counters
    assert counters["blocks_written"] == 10
    assert counters["extents_written"] == 2


def test_parts_of_a_run_are_read(stores: StoreFactory) -> None:
    store = stores.open(extent_bytes=2000)
    prefix = make_chain(20)
    put(store, prefix)
    assert len(store.find(prefix).runs) == 7
    with store.get_run(prefix, 5, 17) as run:
        assert [bytes(block) for block in run.blocks] == [payload(block) for block in prefix[5:17]]
    with store.get_run(prefix, 20) as run:
        assert run.blocks == []


def test_long_extents_are_read_by_several_threads(stores: StoreFactory) -> None:
    store = stores.open()
    prefix = make_chain(300)
    put(store, prefix)
    assert len(store.find(prefix).runs) == 1
    assert served(store, prefix) == 300


def test_prefetching_overlaps(stores: StoreFactory) -> None:
    store = stores.open()
    prefix = make_chain(30)
    put(store, prefix)
    fetches = [store.prefetch(prefix, start) for start in range(0, 30, 5)]
    for fetch, start in zip(fetches, range(0, 30, 5), strict=True):
        assert fetch.hit.result(10).blocks == 30
        with fetch.take(10) as run:
            assert len(run.blocks) == 30 - start
            assert run.start == start
    store.prefetch(prefix).drop()


def test_everything_survives_a_restart(stores: StoreFactory) -> None:
    prefix = make_chain(8)
    first = stores.open()
    put(first, prefix)
    first.close()
    assert served(stores.open(), prefix) == 8


def test_tenants_do_not_see_each_other(stores: StoreFactory) -> None:
    store = stores.open()
    put(store, make_chain(6), salt=SALT)
    assert store.find(make_chain(6, salt=SALT)).blocks == 6
    assert store.find(make_chain(6, salt=SALT[::-1])).blocks == 0


@pytest.mark.parametrize("name", sorted(IDENTITY.__struct_fields__))
def test_another_identity_misses(stores: StoreFactory, name: str) -> None:
    store = stores.open()
    put(store, make_chain(4))
    value = getattr(IDENTITY, name)
    other = msgspec.structs.replace(IDENTITY, **{name: value + 1 if isinstance(value, int) else value + "x"})
    assert store.find(make_chain(4)).blocks == 4
    assert store.find(make_chain(4, identity=other)).blocks == 0


def test_a_lookup_is_not_a_use(stores: StoreFactory, clock: ManualClock) -> None:
    store = stores.open()
    prefix = make_chain(4)
    put(store, prefix)
    clock.advance(3600)
    before = store.find(prefix).runs[0].claims
    served(store, prefix)
    assert store.find(prefix).runs[0].claims == before
    assert use(store, prefix) == 4
    assert store.find(prefix).runs[0].claims["agent"] == before["agent"] + 3_600_000_000


def test_using_a_chain_touches_all_of_it_heads_last(stores: StoreFactory, clock: ManualClock) -> None:
    store = stores.open()
    prefix = make_chain(12)
    for end in (3, 6, 9, 12):
        put(store, prefix[:end], start=end - 3)
        clock.advance(10)
    use(store, prefix[:9], "chat")
    ages = [run.claims for run in store.find(prefix).runs]
    assert ["chat" in claims for claims in ages] == [True, True, True, False]
    assert [claims["chat"] for claims in ages[:3]] == sorted((claims["chat"] for claims in ages[:3]), reverse=True)
    agents = [claims["agent"] for claims in ages]
    assert agents == sorted(agents, reverse=True)
    assert len(set(agents)) == 4


def test_a_damaged_block_is_a_miss_and_a_counter(stores: StoreFactory, eventually: Wait) -> None:
    store = stores.open()
    prefix = make_chain(10)
    put(store, prefix, size=4096)
    (path,) = store.root.extents.rglob("*.kvx")
    data = bytearray(path.read_bytes())
    data[-3 * 4096 - 100] ^= 1
    path.write_bytes(data)
    assert served(store, prefix) == 6
    assert store.status().counters["reads_checksum"] == 1
    assert store.health.has(Trouble.CORRUPT)
    eventually(lambda: store.find(prefix).blocks == 0)  # the extent is out of the index
    put(store, prefix)
    assert served(store, prefix) == 10


@pytest.mark.parametrize("keep", [0, 10, 100, 3000])
def test_a_torn_extent_is_a_miss(stores: StoreFactory, keep: int) -> None:
    store = stores.open()
    prefix = make_chain(10)
    put(store, prefix)
    (path,) = store.root.extents.rglob("*.kvx")
    path.write_bytes(path.read_bytes()[:keep])
    assert served(store, prefix) == 0
    assert store.status().counters["reads_truncated"] == 1


def test_an_extent_under_anothers_name_is_a_miss(stores: StoreFactory) -> None:
    store = stores.open()
    one, two = make_chain(4), make_chain(4, start=100)
    put(store, one)
    put(store, two)
    first, second = (store.root.where(store.find(c).runs[0].extent) for c in (one, two))
    second.write_bytes(first.read_bytes())
    assert served(store, one) == 4
    assert served(store, two) == 0
    assert store.status().counters["reads_identity"] == 1


def test_a_missing_file_is_a_miss_and_forgotten(stores: StoreFactory, eventually: Wait) -> None:
    store = stores.open()
    prefix = make_chain(4)
    put(store, prefix)
    next(store.root.extents.rglob("*.kvx")).unlink()
    assert served(store, prefix) == 0
    eventually(lambda: store.find(prefix).blocks == 0)
    assert not store.health.has(Trouble.ROOT_MISSING)


def test_a_run_must_end_its_chain(stores: StoreFactory) -> None:
    with pytest.raises(ValueError, match="do not end"):
        stores.open().put_run(make_chain(3), 0, [b""], salt=SALT, fingerprint="f", retention_class="chat")


def test_a_rejected_lookup_reason_is_told(stores: StoreFactory) -> None:
    store = stores.open()
    store.index.client.delete(store.index.key("meta"))
    assert store.find(make_chain(3)).reason == "index_lost"
    assert store.health.has(Trouble.INDEX_LOST)


@pytest.mark.parametrize("broken", ["missing", "damaged"])
def test_who_takes_a_failed_read_asks_neither_file_system_nor_index(
    stores: StoreFactory, eventually: Wait, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    """The engine's thread takes what came: both may hang."""
    store = stores.open()
    prefix = make_chain(4)
    put(store, prefix)
    path = next(store.root.extents.rglob("*.kvx"))
    if broken == "missing":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:-1] + b"?")
    asked: list[str] = []
    for place, name in ((store.root, "check"), (store.index, "forget")):
        real = getattr(place, name)

        def noting(*args: object, real: Callable[..., object] = real, **options: object) -> object:
            asked.append(threading.current_thread().name)
            return real(*args, **options)

        monkeypatch.setattr(place, name, noting)
    fetch = store.prefetch(prefix)
    eventually(fetch.done)
    fetch.take(0.0).release()
    eventually(lambda: store.find(prefix).blocks == 0)
    assert asked
    assert threading.current_thread().name not in asked


def test_a_lookup_that_comes_after_its_reader_gave_up_reads_nothing(
    stores: StoreFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = stores.open()
    prefix = make_chain(4)
    put(store, prefix)
    go, find = threading.Event(), store.find
    monkeypatch.setattr(store, "find", lambda chain: find(chain) if go.wait(10) else MISS)
    opened: list[object] = []
    monkeypatch.setattr(store.root, "open", opened.append)
    fetch = store.prefetch(prefix)
    assert fetch.take(0.0).reason == "deadline"
    go.set()
    assert fetch.hit.result(10).blocks == 4
    assert fetch.done()
    assert not opened
