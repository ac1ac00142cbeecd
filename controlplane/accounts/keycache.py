"""Authentication by API key without a query: an in-process cache by the key's full hash.

A revocation is announced on a Valkey channel and takes effect here within a second. While this process cannot hear
the channel, an entry is trusted for one second only. While the database is away, entries that were good at their last
check stay good for `DATABASE_GRACE_S`: nobody can revoke a key then either.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from typing import Any, Final

import redis
from asgiref.sync import sync_to_async
from django.db import DatabaseError, InterfaceError, OperationalError, close_old_connections, connections

from controlplane import valkey
from controlplane.accounts import invalidation, keys
from controlplane.accounts.permissions import Principal
from controlplane.accounts.selectors import KeyRecord, key_record
from controlplane.accounts.services import keys_touch
from controlplane.database import release_connections

CAPACITY: Final = 10_000
REFUSED_CAPACITY: Final = 1_000
TRUST_S: Final = 60.0
TRUST_UNHEARD_S: Final = 1.0
REFUSED_TRUST_S: Final = 5.0
DATABASE_GRACE_S: Final = 600.0
TOUCH_INTERVAL_S: Final = 10.0
DATABASE_RETRY_S: Final = 1.0
"""Known keys are not looked up for so long after the database did not answer: finding that out takes seconds."""

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Entry:
    record: KeyRecord
    checked: float
    """Monotonic seconds of the last look into the database."""


class KeyCache:
    """Bounded, thread-safe, for any number of event loops. `lookup` is the database's word on a hash."""

    def __init__(
        self,
        lookup: Callable[[keys.KeyHash], KeyRecord | None] = key_record,
        subscribe: Callable[[], AbstractContextManager[Any]] = invalidation.subscription,
    ) -> None:
        self._lookup = lookup
        self._subscribe = subscribe
        self._lock = threading.Lock()
        self._entries: OrderedDict[keys.KeyHash, _Entry] = OrderedDict()
        self._refused: OrderedDict[keys.KeyHash, float] = OrderedDict()
        self._used: dict[int, float] = {}
        self._generation = 0
        self._heard = False
        self._away_until = 0.0
        self._turned = self._flushed = time.monotonic()
        self._listener: threading.Thread | None = None
        self._flusher: threading.Thread | None = None
        self._stop = threading.Event()
        self.lookups = 0
        """Queries made, for the gauges and the tests."""

    # --- hot path ---------------------------------------------------------------------------------------------

    def cached(self, digest: keys.KeyHash) -> tuple[bool, Principal | None]:
        """(known, principal): `known` False means that the database must be asked. No I/O."""
        now = time.monotonic()
        with self._lock:
            refused = self._refused.get(digest)
            if refused is not None and now - refused < REFUSED_TRUST_S:
                return True, None
            entry = self._entries.get(digest)
            if entry is None or now - entry.checked >= self._trust_s(now):
                return False, None
            self._entries.move_to_end(digest)
            return True, self._use(entry)

    def _trust_s(self, now: float) -> float:
        """How long after its last look into the database an entry is taken without another."""
        if now < self._away_until:
            return DATABASE_GRACE_S
        return TRUST_S if self._heard else TRUST_UNHEARD_S

    def _use(self, entry: _Entry) -> Principal | None:
        if not entry.record.usable:
            return None
        self._used[entry.record.key_id] = time.time()
        return entry.record.principal

    def fetch(self, digest: keys.KeyHash) -> Principal | None:
        """Ask the database and remember the answer. Blocks. Raises DatabaseError where nothing is known either way."""
        self.start()
        with self._lock:
            generation = self._generation
            self.lookups += 1
        try:
            found = self._lookup(digest)
        except (OperationalError, InterfaceError):
            self._away_until = time.monotonic() + DATABASE_RETRY_S
            entry = self._last_known(digest)
            if entry is None:
                raise
            log.warning("the database is away; a key is taken as it was %.0f s ago", time.monotonic() - entry.checked)
            with self._lock:
                return self._use(entry)
        now = time.monotonic()
        with self._lock:
            if found is None:
                self._refused[digest] = now
                while len(self._refused) > REFUSED_CAPACITY:
                    self._refused.popitem(last=False)
                return None
            entry = _Entry(record=found, checked=now)
            if generation == self._generation:  # nothing was invalidated while we asked
                self._entries[digest] = entry
                self._entries.move_to_end(digest)
                while len(self._entries) > CAPACITY:
                    self._entries.popitem(last=False)
            return self._use(entry)

    def _last_known(self, digest: keys.KeyHash) -> _Entry | None:
        with self._lock:
            entry = self._entries.get(digest)
        return entry if entry is not None and time.monotonic() - entry.checked <= DATABASE_GRACE_S else None

    # --- invalidation and last use, each on a thread of its own -------------------------------------------------

    def start(self) -> None:
        """Start listening and writing last uses, once per process (after a fork too)."""
        with self._lock:
            if self._listener is not None and self._listener.is_alive():
                return
            self._stop.clear()
            self._listener = threading.Thread(target=self._listen, name="key-cache", daemon=True)
            self._listener.start()
            self._flusher = threading.Thread(target=self._flush, name="key-cache-uses", daemon=True)
            self._flusher.start()

    def stop(self) -> None:
        """Stop listening and write the last uses."""
        self._stop.set()
        for thread in (self._listener, self._flusher):
            if thread is not None:
                thread.join(timeout=5)
        self.flush_used()

    @property
    def heard(self) -> bool:
        """Whether revocations reach this process over Valkey now."""
        return self._heard

    @property
    def loop_age_s(self) -> float:
        """Seconds since the listening loop last came round."""
        return time.monotonic() - self._turned

    @property
    def flush_age_s(self) -> float:
        """Seconds since last uses were last written, or found to have nothing new."""
        return time.monotonic() - self._flushed

    def invalidate(self, digest: keys.KeyHash | None = None) -> None:
        """Forget one key, or all."""
        with self._lock:
            self._generation += 1
            if digest is None:
                self._entries.clear()
                self._refused.clear()
            else:
                self._entries.pop(digest, None)
                self._refused.pop(digest, None)

    def invalidate_tenant(self, slug: str) -> None:
        """Forget the keys of one tenant."""
        with self._lock:
            self._generation += 1
            gone = [digest for digest, entry in self._entries.items() if entry.record.principal.tenant == slug]
            for digest in gone:
                del self._entries[digest]

    def flush_used(self) -> None:
        """Write last uses collected so far; they are kept for the next time where the database is away."""
        with self._lock:
            used, self._used = self._used, {}
        try:
            close_old_connections()
            keys_touch(used={key: datetime.fromtimestamp(at, UTC) for key, at in used.items()})
        except DatabaseError as error:
            log.warning("last uses of %d keys wait for the database (%s)", len(used), error)
            with self._lock:
                self._used = used | self._used

    def _listen(self) -> None:
        delay = 0.1
        while not self._stop.is_set():
            try:
                with self._subscribe() as pubsub:
                    delay = 0.1
                    self._follow(pubsub)
            except (redis.RedisError, OSError) as error:
                log.warning("key changes are not heard (%s); cached keys are trusted for a second", error)
                delay = min(delay * 2, 2.0)
            self._heard = False
            self._turned = time.monotonic()
            self._stop.wait(delay)

    def _follow(self, pubsub: Any) -> None:
        """Follow the channel until it breaks. What was announced before we heard it is not known: start empty."""
        self.invalidate()
        self._heard = True
        for message in valkey.follow(pubsub):
            self._turned = time.monotonic()
            if message is not None and message["type"] == "message":
                self._heard_of(message["data"].decode("ascii"))
            if self._stop.is_set():
                return

    def _heard_of(self, message: str) -> None:
        if message.startswith(invalidation.TENANT):
            self.invalidate_tenant(message.removeprefix(invalidation.TENANT))
        else:
            self.invalidate(keys.KeyHash(message))

    def _flush(self) -> None:
        """Not on the listening thread: a database that hangs must not keep revocations from being heard."""
        while not self._stop.wait(TOUCH_INTERVAL_S):
            self.flush_used()
            connections.close_all()  # of this thread: no connection is held for one statement in ten seconds
            self._flushed = time.monotonic()


@cache
def key_cache() -> KeyCache:
    """The process's cache."""
    return KeyCache()


def authenticate_sync(raw: str) -> Principal | None:
    """The principal of a raw key, or None: unknown, malformed, expired or revoked. A query at first use only."""
    digest = keys.digest(raw)
    if digest is None:
        return None
    known, principal = key_cache().cached(digest)
    return principal if known else key_cache().fetch(digest)


async def authenticate(raw: str) -> Principal | None:
    """`authenticate_sync` for event loops: a thread is entered only where the database has to be asked."""
    digest = keys.digest(raw)
    if digest is None:
        return None
    known, principal = key_cache().cached(digest)
    return principal if known else await sync_to_async(_fetch_and_release)(digest)


def _fetch_and_release(digest: keys.KeyHash) -> Principal | None:
    try:
        return key_cache().fetch(digest)
    finally:
        release_connections()
