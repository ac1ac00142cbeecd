from __future__ import annotations

import pytest

from tests.workers.kvstore.factories import IDENTITY, SALT, StoreFactory, make_chain, policy, put, set_policy, use
from workers.kvstore.clock import ManualClock
from workers.kvstore.extent import PAGED, salt_id
from workers.kvstore.statistics import read

pytestmark = pytest.mark.integration


def test_statistics_add_up(stores: StoreFactory, clock: ManualClock) -> None:
    store = stores.open()
    set_policy(store, policy(1, agent_ttl_s=7200, chat_ttl_s=1e6))
    shared, alone, theirs = make_chain(5), make_chain(7, start=500), make_chain(3, salt=SALT[::-1])
    put(store, shared)
    put(store, alone)
    put(store, theirs, salt=SALT[::-1], fingerprint="other", retention_class="chat")
    clock.advance(3000)
    use(store, shared, "chat")
    found = read(store.index)
    assert (found.total.blocks, found.total.extents) == (15, 3)
    assert {name: size.blocks for name, size in found.tenants.items()} == {salt_id(SALT): 12, salt_id(SALT[::-1]): 3}
    assert {name: size.blocks for name, size in found.models.items()} == {IDENTITY.fingerprint(): 12, "other": 3}
    assert found.kinds[PAGED] == found.total
    assert found.claims["agent"].extents_by_age == {"<= 1 h": 2}
    assert found.claims["chat"].extents_by_age == {"<= 1 min": 1, "<= 1 h": 1}
    assert found.claims["agent"].bytes + found.claims["chat"].bytes > found.total.bytes  # one extent counts in both
    assert found.index_bytes > 0


def test_what_went_is_told_by_reason(stores: StoreFactory, clock: ManualClock) -> None:
    store = stores.open()
    set_policy(store, policy(1, agent_ttl_s=100))
    put(store, make_chain(5))
    clock.advance(1000)
    store.sweep()
    put(store, make_chain(4, start=500))
    store.upkeep.purge(salt_id=salt_id(SALT))
    found = read(store.index)
    assert found.gone == {"expired": {"agent": 5}, "purged": {"agent": 4}}
    assert found.ghosts == {"agent": 1}
    assert (found.total.bytes, found.tenants, found.models, found.kinds) == (0, {}, {}, {})
