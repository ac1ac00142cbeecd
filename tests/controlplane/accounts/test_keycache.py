from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pytest
from asgiref.sync import sync_to_async
from django.db import OperationalError, connections

from controlplane.accounts import invalidation, keycache, keys, services
from controlplane.accounts.keycache import KeyCache
from controlplane.accounts.models import APIKey
from controlplane.accounts.permissions import SYSTEM, Scope
from controlplane.accounts.selectors import KeyRecord
from tests.controlplane.accounts import factories
from tests.controlplane.services_of_own import OwnValkey
from tests.controlplane.waiting import wait_until

DIGEST = keys.KeyHash("ab" * 32)


def record(expires_at: datetime | None = None) -> KeyRecord:
    return KeyRecord(
        key_id=1,
        key_hash=DIGEST,
        principal=factories.key_principal(Scope.INFERENCE),
        expires_at=expires_at,
        revoked=False,
    )


class Database:
    """The answers of a lookup, one after the other; the last one for ever."""

    def __init__(self, *answers: KeyRecord | Exception | None) -> None:
        self.answers = list(answers)

    def __call__(self, digest: keys.KeyHash) -> KeyRecord | None:
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


class Deaf(KeyCache):
    """Does not listen: these tests look at the memory alone."""

    def start(self) -> None:
        pass


def test_a_known_key_is_not_looked_up_again() -> None:
    cache = Deaf(Database(record()))
    assert cache.fetch(DIGEST) is not None
    assert cache.cached(DIGEST) == (True, record().principal)
    assert cache.lookups == 1


def test_an_unknown_key_is_refused_from_memory_for_a_while() -> None:
    cache = Deaf(Database(None))
    assert cache.fetch(DIGEST) is None
    assert cache.cached(DIGEST) == (True, None)


def test_a_key_expires_in_the_cache_too() -> None:
    cache = Deaf(Database(record(expires_at=datetime.now(UTC) - timedelta(seconds=1))))
    assert cache.fetch(DIGEST) is None
    assert cache.cached(DIGEST) == (True, None)


def test_an_invalidated_key_is_asked_for_again() -> None:
    cache = Deaf(Database(record()))
    cache.fetch(DIGEST)
    cache.invalidate(DIGEST)
    assert cache.cached(DIGEST) == (False, None)


def test_an_answer_that_was_overtaken_by_an_invalidation_is_not_kept() -> None:
    cache = Deaf()

    def overtaken(digest: keys.KeyHash) -> KeyRecord:
        cache.invalidate(digest)
        return record()

    cache._lookup = overtaken
    cache.fetch(DIGEST)
    assert cache.cached(DIGEST) == (False, None)


def test_while_the_database_is_away_known_keys_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    cache = Deaf(Database(record(), OperationalError("away")))
    cache.fetch(DIGEST)
    monkeypatch.setattr(keycache, "TRUST_UNHEARD_S", 0.0)
    assert cache.cached(DIGEST) == (False, None)
    assert cache.fetch(DIGEST) == record().principal
    with pytest.raises(OperationalError):
        cache.fetch(keys.KeyHash("cd" * 32))


def test_the_grace_of_an_absent_database_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    cache = Deaf(Database(record(), OperationalError("away")))
    cache.fetch(DIGEST)
    monkeypatch.setattr(keycache, "DATABASE_GRACE_S", -1.0)
    with pytest.raises(OperationalError):
        cache.fetch(DIGEST)


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keycache, "CAPACITY", 3)
    monkeypatch.setattr(keycache, "REFUSED_CAPACITY", 2)
    known, unknown = Deaf(Database(record())), Deaf(Database(None))
    for number in range(10):
        known.fetch(keys.KeyHash(f"{number:064}"))
        unknown.fetch(keys.KeyHash(f"{number:064}"))
    assert len(known._entries) == 3
    assert len(unknown._refused) == 2


# --- with real services -----------------------------------------------------------------------------------------


@pytest.fixture
def cache(transactional_db: None, valkey_url: str) -> Iterator[KeyCache]:
    cache = KeyCache()
    yield cache
    cache.stop()


@pytest.mark.integration
def test_a_revocation_is_heard(
    cache: KeyCache, django_assert_num_queries: Callable[[int], AbstractContextManager[object]]
) -> None:
    key, raw = services.key_create(actor=SYSTEM, tenant=factories.tenant(), name="x", scopes=[Scope.INFERENCE])
    digest = keys.digest(raw)
    assert digest is not None
    assert cache.fetch(digest) is not None
    wait_until(lambda: cache.heard, "the channel is heard")
    assert cache.fetch(digest) is not None
    with django_assert_num_queries(0):
        assert cache.cached(digest)[1] is not None
    services.key_revoke(actor=SYSTEM, key=key)
    wait_until(lambda: cache.cached(digest) == (False, None), "the revocation arrived")
    assert cache.fetch(digest) is None


@pytest.mark.integration
def test_last_uses_reach_the_database(cache: KeyCache) -> None:
    key, raw = services.key_create(actor=SYSTEM, tenant=factories.tenant(), name="x", scopes=[Scope.INFERENCE])
    digest = keys.digest(raw)
    assert digest is not None
    cache.fetch(digest)
    cache.flush_used()
    assert APIKey.objects.get(pk=key.pk).last_used_at is not None


@pytest.mark.integration
@pytest.mark.django_db(transaction=True)
def test_without_valkey_nothing_is_trusted_for_long_and_a_reconnect_starts_empty(tmp_path: Path) -> None:
    valkey = OwnValkey(tmp_path)
    cache = KeyCache(Database(record()), subscribe=partial(invalidation.subscription, valkey.url))
    valkey.start()
    try:
        cache.start()
        wait_until(lambda: cache.heard, "the channel is heard")
        cache.fetch(DIGEST)
        valkey.stop()
        wait_until(lambda: not cache.heard, "the loss is noticed")
        wait_until(lambda: cache.cached(DIGEST) == (False, None), "the entry is no longer trusted")
        assert cache.fetch(DIGEST) is not None
        valkey.start()
        wait_until(lambda: cache.heard, "the channel is heard again")
        assert cache.cached(DIGEST) == (False, None)
    finally:
        cache.stop()
        valkey.stop()


@pytest.mark.integration
@pytest.mark.django_db(transaction=True)
def test_a_silent_valkey_does_not_count_as_heard(tmp_path: Path) -> None:
    valkey = OwnValkey(tmp_path)
    cache = KeyCache(Database(record()), subscribe=partial(invalidation.subscription, valkey.url))
    valkey.start()
    try:
        cache.start()
        wait_until(lambda: cache.heard, "the channel is heard")
        os.kill(valkey.pid, signal.SIGSTOP)  # its connections stay open, as those of a host that vanished
        wait_until(lambda: not cache.heard, "the silence is noticed")
        os.kill(valkey.pid, signal.SIGCONT)
        wait_until(lambda: cache.heard, "the channel is heard again")
    finally:
        os.kill(valkey.pid, signal.SIGCONT)
        cache.stop()
        valkey.stop()


@pytest.mark.integration
def test_a_database_that_hangs_keeps_no_revocation_from_being_heard(
    monkeypatch: pytest.MonkeyPatch, transactional_db: None, valkey_url: str
) -> None:
    hangs, release = threading.Event(), threading.Event()

    def touch(**kwargs: object) -> None:
        hangs.set()
        release.wait(60)

    monkeypatch.setattr(keycache, "keys_touch", touch)
    monkeypatch.setattr(keycache, "TOUCH_INTERVAL_S", 0.05)
    cache = KeyCache(Database(record()))
    cache.fetch(DIGEST)
    try:
        wait_until(lambda: cache.heard and hangs.is_set(), "the channel is heard, last uses hang")
        cache.fetch(DIGEST)
        invalidation.publish(DIGEST)
        wait_until(lambda: cache.cached(DIGEST) == (False, None), "the change is heard")
    finally:
        release.set()
        cache.stop()


@pytest.mark.integration
@pytest.mark.django_db(transaction=True)
async def test_authenticate_for_event_loops(valkey_url: str) -> None:
    def make() -> str:
        return services.key_create(actor=SYSTEM, tenant=factories.tenant("acme"), name="x", scopes=["inference"])[1]

    raw = await sync_to_async(make)()
    try:
        first = await keycache.authenticate(raw)
        assert first is not None
        assert first.tenant == "acme"
        assert await keycache.authenticate(raw) == first
        assert await keycache.authenticate("gk-abcdefgh-" + "a" * 43) is None
        assert await keycache.authenticate("nonsense") is None
    finally:
        await sync_to_async(keycache.key_cache().stop)()
        keycache.key_cache.cache_clear()
        await sync_to_async(connections.close_all)()


def test_a_tenants_keys_are_forgotten_together() -> None:
    cache = Deaf(Database(record()))
    cache.fetch(DIGEST)
    cache.invalidate_tenant("another")
    assert cache.cached(DIGEST)[0]
    cache._heard_of(f"{invalidation.TENANT}default")
    assert not cache.cached(DIGEST)[0]
