"""The control worker's care for the store: space is freed, troubles become alerts and pass, no disk is waited for."""

from __future__ import annotations

import errno
import threading
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from django.utils import timezone

from controlplane.caching import observing, selectors, services, tasks
from controlplane.caching.publication import publish_current
from controlplane.caching.store import store_settings
from controlplane.caching.tending import Tender, tender
from controlplane.config import home
from tests.controlplane.caching import factories
from workers.kvstore.store import Store

pytestmark = [pytest.mark.integration, pytest.mark.django_db, pytest.mark.usefixtures("empty_store")]

LONG_S = 30.0


def open_store(**changes: Any) -> Store:
    return Store(msgspec.structs.replace(store_settings(), reserve_bytes=0, index_timeout_s=10.0, **changes))


@pytest.fixture
def tending() -> Iterator[Tender]:
    made = Tender(open_store)
    yield made
    made.close()


def test_a_round_frees_what_a_shorter_life_let_go(tending: Tender) -> None:
    with factories.worker_store() as store:
        factories.fill(store)
    factories.save(ttl_s=0.0)
    publish_current()
    assert tending.tend(LONG_S) == {}
    assert not list(home().kvstore.rglob("*.kvx"))


def test_a_round_keeps_budgets(tending: Tender) -> None:
    with factories.worker_store() as store:
        for start in range(1, 9):
            factories.fill(store, start=start * 100_000)
        before = store.index.client.hget(store.index.key("size", "bytes"), "total")
    assert before is not None
    factories.save(byte_budget=int(before) // 2)
    publish_current()
    tending.tend(LONG_S)
    with factories.worker_store() as store:
        after = store.index.client.hget(store.index.key("size", "bytes"), "total")
        assert after is not None
        assert int(before) * 0.3 < int(after) <= int(before) * 0.5


def test_a_folder_that_goes_and_comes_back(tending: Tender) -> None:
    with factories.worker_store() as store:
        chain = factories.fill(store)
    tending.tend(LONG_S)
    home().kvstore.rename(home().kvstore.with_name("away"))
    assert set(tending.tend(LONG_S)) == {"root_missing"}
    home().kvstore.with_name("away").rename(home().kvstore)
    assert tending.tend(LONG_S) == {}
    with factories.worker_store() as store:
        assert store.find(chain).blocks == len(chain), "what is away is not forgotten"


@pytest.mark.parametrize(
    ("number", "trouble"), [(errno.ENOSPC, "disk_full"), (errno.EROFS, "read_only"), (errno.EIO, "io_error")]
)
def test_writes_that_fail_are_named_and_clear(
    tending: Tender, monkeypatch: pytest.MonkeyPatch, number: int, trouble: str
) -> None:
    tending.tend(LONG_S)
    with monkeypatch.context() as broken:
        broken.setattr("workers.kvstore.files.Root.write_small", _fails_with(number))
        assert trouble in tending.tend(LONG_S)
    assert tending.tend(LONG_S) == {}


def _fails_with(number: int) -> Any:
    def write_small(*_: Any, **__: Any) -> None:
        raise OSError(number, "as a broken disk says it")

    return write_small


def test_a_disk_that_hangs_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    stuck, let_go = threading.Event(), threading.Event()

    def hanging(*_: Any, **__: Any) -> str:
        stuck.set()
        let_go.wait(LONG_S)
        return "nothing"

    def opening() -> Store:
        store = open_store()
        monkeypatch.setattr(store.root, "store_id", hanging)
        return store

    tending = Tender(opening)
    monkeypatch.setattr("controlplane.caching.tending.SLOW_S", 0.0)
    try:
        tending.tend(0.0)
        assert stuck.wait(LONG_S)
        assert "slow" in tending.tend(0.0)
    finally:
        let_go.set()
        tending.close()


def test_alerts_are_exactly_what_is_observed() -> None:
    first, later = timezone.now(), timezone.now()
    services.alerts_observe(observed={"control": {"slow": "3 s"}, "w-0": {"slow": "5 s"}}, now=first)
    services.alerts_observe(observed={"control": {"slow": "4 s", "disk_full": "0 bytes"}}, now=later)
    assert {(a.source, a.trouble, a.reason, a.since) for a in selectors.open_alerts()} == {
        ("control", "slow", "4 s", first),
        ("control", "disk_full", "0 bytes", later),
    }
    assert [(a.source, a.cleared_at) for a in selectors.past_alerts()] == [("w-0", later)]


def test_the_task_publishes_looks_and_says_how_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("controlplane.caching.tending.WAIT_S", LONG_S)
    tasks.tend()
    tender().tend(LONG_S)
    home().kvstore.rename(home().kvstore.with_name("away"))
    try:
        tender().tend(LONG_S)
        tasks.tend()
        assert [alert.trouble for alert in selectors.open_alerts()] == ["root_missing"]
    finally:
        home().kvstore.with_name("away").rename(home().kvstore)
    tender().tend(LONG_S)
    tasks.tend()
    assert not selectors.open_alerts().exists()
    assert publish_current().value == "current"


def test_what_workers_report_is_observed(monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.controlplane.telemetry.factories import worker

    reports = [worker("w-0", store_troubles={"slow": "reads take 3 s"}), worker("w-1")]
    monkeypatch.setattr(observing, "worker_snapshots", lambda: reports)
    assert observing.everything({}, ahead=False) == {"control": {}, "w-0": {"slow": "reads take 3 s"}}
    assert set(observing.everything({}, ahead=True)["control"]) == {"policy_ahead"}
