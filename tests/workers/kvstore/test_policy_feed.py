from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.workers.kvstore.factories import SALT, StoreFactory, make_chain, policy, put, set_policy
from workers.kvstore.extent import salt_id
from workers.kvstore.policy import PolicyError, RetentionPolicy
from workers.kvstore.policy_feed import publish

pytestmark = pytest.mark.integration

Wait = Callable[[Callable[[], bool]], None]


def test_pools_hear_of_policies_and_purges(stores: StoreFactory, eventually: Wait) -> None:
    publisher, listener = stores.open(), stores.open(background=True)
    put(publisher, make_chain(2))
    versions: list[int] = []
    scopes: list[str] = []
    listener.policy.watch(lambda new: versions.append(new.version))
    listener.policy.watch_purges(scopes.append)
    eventually(lambda: listener.policy.age_s < 1)
    set_policy(publisher, policy(4))
    eventually(lambda: versions == [4])
    publisher.upkeep.purge(salt_id=salt_id(SALT))
    eventually(lambda: scopes == [f"t:{salt_id(SALT)}"])
    set_policy(publisher, policy(5))
    eventually(lambda: versions == [4, 5])
    assert scopes == [f"t:{salt_id(SALT)}"]


def test_a_bad_policy_is_not_published(stores: StoreFactory) -> None:
    store = stores.open()
    with pytest.raises(PolicyError, match="more than the disk"):
        publish(store.index, policy(1, total_bytes=10**18), disk_bytes=store.root.disk_bytes())
    assert store.index.policy() is None


def test_a_policy_that_cannot_be_read_changes_nothing(stores: StoreFactory, eventually: Wait) -> None:
    store = stores.open(background=True)
    set_policy(store, policy(1))
    eventually(lambda: store.policy.current.version == 1)
    store.index.publish_policy(2, b'{"version": 2, "a field of a later release": 1}')
    assert store.find(make_chain(1)).reason == "index"
    assert store.policy.current.version == 1
    later: RetentionPolicy = policy(3)
    set_policy(store, later)
    eventually(lambda: store.policy.current == later)
    assert store.find(make_chain(1)).reason == ""


def test_a_copy_that_cannot_be_read_keeps_no_policy_away(stores: StoreFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    store = stores.open()
    seen: list[int] = []
    store.policy.watch(lambda new: seen.append(new.version))
    set_policy(store, policy(1))

    def fails(name: str) -> bytes:
        raise PermissionError(name)

    monkeypatch.setattr(store.root, "read_small", fails)
    assert store.find(make_chain(1)).reason == ""
    assert seen == [1]


def test_a_lookup_that_fails_is_a_miss_at_once(stores: StoreFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    store = stores.open(read_deadline_s=60.0)

    def fails(chain: object) -> None:
        raise RuntimeError("a fault of ours")

    monkeypatch.setattr(store, "find", fails)
    fetch = store.prefetch(make_chain(2))
    assert fetch.take(30.0).reason == "deadline"
    assert fetch.hit.cancelled()
