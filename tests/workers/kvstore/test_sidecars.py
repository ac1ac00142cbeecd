from __future__ import annotations

from typing import Literal

import pytest

from tests.workers.kvstore.factories import (
    IDENTITY,
    SALT,
    StoreFactory,
    make_chain,
    policy,
    put,
    served,
    set_policy,
    use,
)
from workers.identity import BlockHash
from workers.kvstore.clock import ManualClock
from workers.kvstore.policy import RetentionClass, SidecarRule
from workers.kvstore.store import Store

pytestmark = pytest.mark.integration

KIND = "window.v1"


def put_sidecar(store: Store, blocks: list[BlockHash], data: bytes, *, unit_end: bool = True) -> bool:
    accepted = store.sidecars.put(
        blocks,
        KIND,
        data,
        unit_end=unit_end,
        salt=SALT,
        fingerprint=IDENTITY.fingerprint(),
        retention_class="agent",
    )
    assert store.flush()
    return accepted


def keep(store: Store, version: int, rule: Literal["none", "unit_end", "all"], ttl_s: float | None = None) -> None:
    item = RetentionClass(name="agent", ttl_s=1000, sidecars=SidecarRule(keep=rule, ttl_s=ttl_s))
    set_policy(store, policy(version, classes=(item,), fallback="agent"))
    store.policy.refresh()


def test_sidecars_come_back_by_block_and_kind(stores: StoreFactory) -> None:
    store = stores.open()
    blocks = make_chain(6)
    put(store, blocks)
    assert put_sidecar(store, blocks[:5], b"five" * 100)
    assert put_sidecar(store, blocks, b"six" * 100)
    found = store.sidecars.get(blocks, [3, 4, 5], KIND, retention_class="agent")
    assert found == {4: b"five" * 100, 5: b"six" * 100}
    assert store.sidecars.get(blocks, [4, 5], "window.v2", retention_class="agent") == {}
    assert served(store, blocks) == 6


def test_a_sidecar_needs_its_block(stores: StoreFactory) -> None:
    store = stores.open()
    put_sidecar(store, make_chain(3), b"alone")
    assert store.status().counters["writes_dropped_orphan"] == 1


def test_sidecars_go_before_their_blocks(stores: StoreFactory, clock: ManualClock) -> None:
    store = stores.open()
    blocks = make_chain(4)
    put(store, blocks)
    put_sidecar(store, blocks, b"s" * 5000)
    use(store, blocks)
    store.sidecars.get(blocks, [3], KIND, retention_class="agent")
    size = sum(path.stat().st_size for path in store.root.extents.rglob("*.kvx"))
    set_policy(store, policy(1, agent_ttl_s=1e6, total_bytes=size - 1, low_watermark=1.0))
    assert store.sweep() is not None
    assert served(store, blocks) == 4
    assert store.sidecars.get(blocks, [3], KIND, retention_class="agent") == {}


def test_the_rule_is_judged_as_it_is_now(stores: StoreFactory, clock: ManualClock) -> None:
    store = stores.open()
    blocks = make_chain(4)
    put(store, blocks)
    keep(store, 1, "all")
    assert put_sidecar(store, blocks[:2], b"inside", unit_end=False)
    assert put_sidecar(store, blocks, b"end")
    assert store.sidecars.get(blocks, [1, 3], KIND, retention_class="agent").keys() == {1, 3}
    keep(store, 2, "unit_end")
    found = store.sidecars.get(blocks, [1, 3], KIND, retention_class="agent")
    assert 3 in found
    keep(store, 3, "none")
    assert store.sidecars.get(blocks, [1, 3], KIND, retention_class="agent") == {}
    assert not put_sidecar(store, blocks[:3], b"refused")
    assert store.sweep() is not None
    assert served(store, blocks) == 4
    assert len(list(store.root.walk())) == 1


def test_a_shorter_life_for_sidecars(stores: StoreFactory, clock: ManualClock) -> None:
    store = stores.open()
    blocks = make_chain(4)
    put(store, blocks)
    keep(store, 1, "unit_end", ttl_s=100)
    put_sidecar(store, blocks, b"end")
    clock.advance(101)
    assert store.sidecars.get(blocks, [3], KIND, retention_class="agent") == {}
    assert store.find(blocks).blocks == 4


def test_a_damaged_sidecar_is_left_out(stores: StoreFactory) -> None:
    store = stores.open()
    blocks = make_chain(4)
    put(store, blocks)
    put_sidecar(store, blocks, b"end" * 1000)
    (path,) = [p for p in store.root.extents.rglob("*.kvx") if b"end" in p.read_bytes()]
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    assert store.sidecars.get(blocks, [3], KIND, retention_class="agent") == {}
    assert served(store, blocks) == 4
