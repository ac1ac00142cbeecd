"""How much of a chain the store can serve now: the index's answer, judged by the policy as it is now."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from workers.identity import BlockHash
from workers.kvstore.extent import short_names
from workers.kvstore.health import Health, Trouble
from workers.kvstore.index import Index, IndexUnavailable, Location, Lookup
from workers.kvstore.policy import PolicyError, RetentionPolicy
from workers.kvstore.policy_feed import PolicyFeed
from workers.kvstore.reads import MISS, Hit


class Finder:
    """Thread-safe. `store_id` is the store whose root is mounted here; `index_lost` is called when the index is not."""

    def __init__(
        self,
        index: Index,
        policy: PolicyFeed,
        health: Health,
        *,
        store_id: Callable[[], str],
        index_lost: Callable[[], None],
    ) -> None:
        self._index, self._policy, self._health = index, policy, health
        self._store_id, self._index_lost = store_id, index_lost

    def find(self, chain: Sequence[BlockHash]) -> Hit:
        """As `Store.find`."""
        if not chain:
            return MISS
        try:
            lookup = self._index.lookup(short_names(chain))
            if (problem := self.foreign(lookup)) is not None:
                return Hit(0, reason=problem)
            policy = self._policy.ensure(lookup.policy_version)
        except (IndexUnavailable, PolicyError) as error:
            self._health.report(Trouble.INDEX_AWAY, str(error))
            self._health.count("lookups_failed")
            return Hit(0, reason="index")
        self._health.clear(Trouble.INDEX_AWAY)
        if self._health.has(Trouble.ROOT_MISSING, Trouble.ROOT_FOREIGN):
            return Hit(0, reason="root")
        return self._live(lookup.runs, policy)

    def _live(self, runs: Sequence[Location], policy: RetentionPolicy) -> Hit:
        now, kept, blocks = self._index.now_us(), [], 0
        for run in runs:
            if not policy.live(run.claims, now):
                break
            kept.append(run)
            blocks += run.count
        return Hit(blocks, tuple(kept))

    def foreign(self, lookup: Lookup) -> str | None:
        """Why the answer is not of the store that is mounted here; None where it is."""
        if lookup.store_id == self._store_id() and lookup.store_id:
            return None
        if not lookup.store_id:
            self._index_lost()
            return "index_lost"
        if self._store_id():
            self._health.report(Trouble.INDEX_FOREIGN, f"the index is of store {lookup.store_id}")
        return "root"
