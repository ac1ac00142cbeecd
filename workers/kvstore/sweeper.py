"""Freeing space: what expired, then what is over a budget, least recently used first and tails before heads.

A sweep releases *claims*; an extent goes with its last claim. Because every use gives a deeper extent the older time,
releasing in the order of time never takes a head before its tail. Any process may sweep; a lock lets one at a time.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from workers.kvstore.clock import micros
from workers.kvstore.extent import ExtentId
from workers.kvstore.files import Root
from workers.kvstore.health import Health, Trouble
from workers.kvstore.index import Claim, Index, Released
from workers.kvstore.policy import PIN, RetentionPolicy, claims_of_class, class_of

BATCH_BLOCKS: Final = 128
"""Blocks that one script call may free: it holds up lookups for about a millisecond."""
BATCH_CLAIMS: Final = 64
PAUSE_S: Final = 0.001
GHOST_LIFE_S: Final = 15 * 86_400.0
PURGE_MEMORY_S: Final = 3600.0
"""Longer than any write waits in a queue."""


@dataclass(slots=True)
class SweepReport:
    expired_blocks: int = 0
    expired_bytes: int = 0
    evicted_blocks: int = 0
    evicted_bytes: int = 0
    claims: int = 0
    files_removed: int = 0
    temporary_removed: int = 0
    over_budget: list[str] = field(default_factory=list)
    """Budgets that pins alone exceed."""
    seconds: float = 0.0


class Sweeper:
    def __init__(
        self,
        index: Index,
        root: Root,
        health: Health,
        *,
        reserve_bytes: int = 0,
        most_bytes: int | None = None,
        most_blocks: int,
    ) -> None:
        self._index, self._root, self._health = index, root, health
        self._reserve = reserve_bytes
        self._most_bytes = most_bytes
        self._most_blocks = most_blocks
        self._blocks_per_claim = 4.0
        """What a released claim freed lately: sizes the next batch."""

    def sweep(self, policy: RetentionPolicy) -> SweepReport:
        """One full round. Raises IndexUnavailable or OSError; a round that broke off is continued by the next."""
        began = time.monotonic()
        report = SweepReport()
        self._sync_pins(policy)
        self._expire(policy, report)
        self._class_budgets(policy, report)
        self._total_budgets(policy, report)
        report.files_removed = self.empty_trash()
        report.temporary_removed = self._root.clean_temporary()
        self._trim()
        if report.over_budget:
            self._health.report(Trouble.OVER_BUDGET, "; ".join(report.over_budget))
        else:
            self._health.clear(Trouble.OVER_BUDGET)
        report.seconds = time.monotonic() - began
        return report

    # -- claims ------------------------------------------------------------------------------------------------------

    def claims(self) -> list[str]:
        """Names of all claims that the index holds, pins left out."""
        with self._index.guarded() as client:
            names = sorted(name.decode() for name in client.smembers(self._index.key("classes")))
        return [name for name in names if name != PIN]

    def _oldest(self, claim: str, limit: int, below_us: float = float("inf")) -> list[Claim]:
        with self._index.guarded() as client:
            rows = client.zrangebyscore(
                self._index.key("u", claim), "-inf", below_us, start=0, num=limit, withscores=True
            )
        return [Claim(claim, int(score), ExtentId(extent)) for extent, score in rows]

    def _release(self, claims: list[Claim], reason: str, **limits: int) -> Released:
        began = time.monotonic()
        released = self._index.release(claims, reason=reason, **limits)
        took = time.monotonic() - began
        if released.claims:
            self._blocks_per_claim = (self._blocks_per_claim + max(1.0, released.blocks / released.claims)) / 2
        if released.extents:
            self._health.count(f"extents_{reason}", len(released.extents))
        time.sleep(max(PAUSE_S, took))  # lookups of others come first: at most half of the time is ours
        return released

    def _expire(self, policy: RetentionPolicy, report: SweepReport) -> None:
        for claim in self.claims():
            ttl = policy.ttl_us(claim)
            for released in self._released_below(claim, self._index.now_us() - ttl - 1, "expired"):
                report.claims += released.claims
                report.expired_blocks += released.blocks
                report.expired_bytes += released.bytes

    def _batch(self) -> int:
        """Claims that free about BATCH_BLOCKS."""
        return max(2, min(BATCH_CLAIMS, round(BATCH_BLOCKS / self._blocks_per_claim)))

    def _released_below(self, claim: str, below_us: float, reason: str) -> Iterator[Released]:
        while oldest := self._oldest(claim, self._batch(), below_us):
            yield self._release(oldest, reason, want_blocks=BATCH_BLOCKS)

    def _class_budgets(self, policy: RetentionPolicy, report: SweepReport) -> None:
        for item in policy.classes:
            if item.byte_budget is None:
                continue
            names = claims_of_class(item.name)
            claimed = self.claimed_bytes()
            held = sum(claimed.get(name, 0) for name in names)
            if held <= item.byte_budget:
                continue
            excess = held - int(policy.low_watermark * item.byte_budget)
            while excess > 0:
                batch = self._merged(names, self._batch())
                if not batch:
                    break
                sizes = self._sizes([claim.extent for claim in batch])
                take, enough = 0, 0
                while take < len(batch) and enough < excess:
                    enough += sizes[take]
                    take += 1
                released = self._release(batch[:take], "class_budget")
                excess -= released.claimed_bytes
                report.claims += released.claims
                report.evicted_blocks += released.blocks
                report.evicted_bytes += released.bytes

    def _total_budgets(self, policy: RetentionPolicy, report: SweepReport) -> None:
        size = self.sizes()
        budget = self._effective_budget(policy, size["bytes"])
        if budget is not None and size["bytes"] > budget:
            wanted = size["bytes"] - int(policy.low_watermark * budget)
            left = self._evict(policy, report, want_bytes=wanted)
            if left > 0 and size["bytes"] - wanted + left > budget:
                report.over_budget.append(f"pins hold more than the store's budget of {budget} bytes allows")
        if size["blocks"] > self._most_blocks:
            self._evict(policy, report, want_blocks=size["blocks"] - int(policy.low_watermark * self._most_blocks))

    def _effective_budget(self, policy: RetentionPolicy, held: int) -> int | None:
        """The policy's total, less where the store was given less, or the disk has less room than that."""
        possible = max(0, held + self._root.free_bytes() - self._reserve) if self._reserve else None
        limits = [limit for limit in (policy.total_bytes, self._most_bytes, possible) if limit is not None]
        return min(limits, default=None)

    def _evict(
        self, policy: RetentionPolicy, report: SweepReport, *, want_bytes: int = -1, want_blocks: int = -1
    ) -> int:
        """Evict across classes, lowest priority first. Returns what is left to free."""
        levels: dict[int, list[str]] = {}
        for name in self.claims():
            levels.setdefault(policy.find(class_of(name)).priority, []).append(name)
        left = max(want_bytes, want_blocks)
        for _, names in sorted(levels.items()):
            while left > 0 and (batch := self._merged(names, self._batch())):
                blocks = min(left, BATCH_BLOCKS) if want_blocks >= 0 else BATCH_BLOCKS
                released = self._release(
                    batch, "capacity", want_blocks=blocks, want_bytes=left if want_bytes >= 0 else -1
                )
                left -= released.bytes if want_bytes >= 0 else released.blocks
                report.claims += released.claims
                report.evicted_blocks += released.blocks
                report.evicted_bytes += released.bytes
        return left

    def _merged(self, names: list[str], limit: int) -> list[Claim]:
        """The oldest claims of several classes, in the order of their last use."""
        queues = [self._oldest(name, limit) for name in names]
        return list(heapq.merge(*queues, key=lambda claim: claim.last_us))[:limit]

    # -- sizes -------------------------------------------------------------------------------------------------------

    def claimed_bytes(self) -> dict[str, int]:
        """Bytes by claim; an extent that several classes use counts in each."""
        with self._index.guarded() as client:
            return {k.decode(): int(v) for k, v in client.hgetall(self._index.key("size", "claims")).items()}

    def sizes(self) -> dict[str, int]:
        """Bytes, blocks and extents of the whole store."""
        with self._index.guarded() as client:
            pipe = client.pipeline(transaction=False)
            for part in ("bytes", "blocks", "extents"):
                pipe.hget(self._index.key("size", part), "total")
            found = pipe.execute()
        return dict(zip(("bytes", "blocks", "extents"), (int(v or 0) for v in found), strict=True))

    def _sizes(self, extents: list[ExtentId]) -> list[int]:
        with self._index.guarded() as client:
            pipe = client.pipeline(transaction=False)
            for extent in extents:
                pipe.hget(self._index.key("x").encode() + b":" + extent, "b")
            return [int(v or 0) for v in pipe.execute()]

    # -- the rest ----------------------------------------------------------------------------------------------------

    def _sync_pins(self, policy: RetentionPolicy) -> None:
        """Make the pins of the index those of the policy."""
        pinned: set[ExtentId] = set()
        for pin in policy.pins:
            pinned.update(self._index.pin(PIN, bytes.fromhex(pin.tip)))
        stale = [claim for claim in self._oldest(PIN, 1_000_000) if claim.extent not in pinned]
        for at in range(0, len(stale), BATCH_CLAIMS):
            self._release(stale[at : at + BATCH_CLAIMS], "unpinned")

    def empty_trash(self) -> int:
        """Remove the files of extents that are out of the index. Returns how many."""
        removed = 0
        key = self._index.key("trash")
        while True:
            with self._index.guarded() as client:
                extents = client.zrange(key, 0, 255)
            if not extents:
                return removed
            for extent in extents:
                self._root.remove(ExtentId(extent))
            with self._index.guarded() as client:
                client.zrem(key, *extents)
            removed += len(extents)

    def _trim(self) -> None:
        """Forget ghosts and purges that are too old to matter."""
        old = self._index.now_us() - micros(GHOST_LIFE_S)
        for claim in self.claims():
            with self._index.guarded() as client:
                names = client.zrangebyscore(self._index.key("gz", claim), "-inf", old, start=0, num=10_000)
                if names:
                    client.zrem(self._index.key("gz", claim), *names)
                    client.hdel(self._index.key("gn", claim), *names)
        done = self._index.now_us() - micros(PURGE_MEMORY_S)
        key = self._index.key("purged")
        with self._index.guarded() as client:
            stale = [scope for scope, at in client.hgetall(key).items() if int(at) < done]
            if stale:
                client.hdel(key, *stale)
