"""The policy as it is now: every process sees the version with each lookup, and hears of changes (and of purges, which
pools must follow too) within a second.

The index holds the published snapshot; the root holds a copy for the start without an index. The control plane is the
only publisher.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Final

import redis

from workers.kvstore import policy as codec
from workers.kvstore.files import Root
from workers.kvstore.index import Index, IndexUnavailable
from workers.kvstore.policy import DEFAULT_POLICY, PolicyError, RetentionPolicy

log: Final = logging.getLogger(__name__)

POLL_S: Final = 0.5
PING_S: Final = 5.0
SILENT_S: Final = 15.0
"""A subscription that answered no ping for so long is half open: it is made anew."""
COPY: Final = "policy.json"


def publish(index: Index, policy: RetentionPolicy, *, disk_bytes: int | None = None) -> bool:
    """Check and publish a policy. False when the index already holds this or a newer version. Raises PolicyError."""
    policy.check(disk_bytes=disk_bytes)
    return index.publish_policy(policy.version, codec.encode(policy))


class PolicyFeed:
    """Thread-safe. `current` never blocks; `ensure` fetches when a lookup saw another version."""

    def __init__(self, index: Index, root: Root | None = None) -> None:
        self._index = index
        self._root = root
        self._lock = threading.Lock()
        self._current = DEFAULT_POLICY
        self._watchers: list[Callable[[RetentionPolicy], None]] = []
        self._purge_watchers: list[Callable[[str], None]] = []
        self._purges: dict[bytes, bytes] | None = None
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._polled = time.monotonic()

    @property
    def current(self) -> RetentionPolicy:
        return self._current

    @property
    def age_s(self) -> float:
        """Seconds since the published version was last seen."""
        return time.monotonic() - self._polled

    def load(self) -> None:
        """Take the copy in the root, then the published policy. Raises IndexUnavailable, PolicyError or OSError."""
        raw = self._root.read_small(COPY) if self._root is not None else None
        if raw is not None:
            self._take(codec.decode(raw))
        self.refresh()

    def ensure(self, version: int) -> RetentionPolicy:
        """The policy to judge a lookup by which saw `version`. Raises IndexUnavailable when it cannot be had."""
        if version > self._current.version:
            self.refresh()
        return self._current

    def refresh(self) -> None:
        """Fetch the published policy; one that the index lost is published again."""
        held = self._index.policy()
        self._polled = time.monotonic()
        if held is None or held[0] < self._current.version:
            if self._current.version > 0:
                self._index.publish_policy(self._current.version, codec.encode(self._current))
        elif held[0] > self._current.version:
            self._take(codec.decode(held[1]))

    def _take(self, policy: RetentionPolicy) -> None:
        with self._lock:
            if policy.version <= self._current.version:
                return
            self._current = policy
        if self._root is not None:
            try:
                if self._root.read_small(COPY) != codec.encode(policy):
                    self._root.write_small(COPY, codec.encode(policy), replace=True)
            except OSError as error:
                log.warning("the policy's copy was not written: %s", error)
        for watcher in self._watchers:
            watcher(policy)

    def watch(self, watcher: Callable[[RetentionPolicy], None]) -> None:
        """Call `watcher` with each new policy, from the feed's thread (or a lookup's)."""
        self._watchers.append(watcher)

    def watch_purges(self, watcher: Callable[[str], None]) -> None:
        """Call `watcher` within a second of each purge with its scope: `t:<salt id>`, `m:<fingerprint>` or `c:<claim>`.
        Purges are remembered for an hour, so none is missed while Valkey is away."""
        self._purge_watchers.append(watcher)

    def refresh_purges(self) -> None:
        known, self._purges = self._purges, self._index.purges()
        for scope, at in self._purges.items() if known is not None else ():
            if known is not None and known.get(scope) != at:
                for watcher in self._purge_watchers:
                    watcher(scope.decode())

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="kvstore-policy", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join(2 * POLL_S + 1)

    def _run(self) -> None:
        pubsub = self._index.client.pubsub()
        subscribed, heard, pinged = False, 0.0, 0.0
        while not self._stop.is_set():
            try:
                if not subscribed:
                    pubsub.subscribe(self._index.key("policy"), self._index.key("purge"))
                    subscribed, heard = True, time.monotonic()
                if time.monotonic() - pinged > PING_S:
                    pinged = time.monotonic()
                    pubsub.ping()
                self.refresh()
                self.refresh_purges()
                if pubsub.get_message(timeout=POLL_S) is not None:
                    heard = time.monotonic()
                elif time.monotonic() - heard > SILENT_S:
                    raise TimeoutError("the subscription is silent")
            except (IndexUnavailable, redis.RedisError, OSError):
                subscribed = False
                pubsub.reset()
                self._stop.wait(POLL_S)
            except PolicyError as error:
                log.error("the published policy is not usable, version %d stays: %s", self._current.version, error)
                self._stop.wait(POLL_S)
        pubsub.close()
