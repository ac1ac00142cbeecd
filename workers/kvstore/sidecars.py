"""Sidecars: bytes of a block that are no paged rows (the window rows that make a resume cheap). Opaque here.

They are extents of their own, found by (block, kind), kept by the rule of their class, and always optional: without
them the engine recomputes. A kind carries its version (`window.v1`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future

from workers.identity import BlockHash
from workers.kvstore.clock import Clock
from workers.kvstore.extent import PAGED, salt_id, short_names, sidecar_hash
from workers.kvstore.health import Health
from workers.kvstore.index import Index, IndexUnavailable, Lookup
from workers.kvstore.policy import PolicyError, sidecar_claim
from workers.kvstore.policy_feed import PolicyFeed
from workers.kvstore.pool import BoundedPool, PoolFull
from workers.kvstore.reading import Segment
from workers.kvstore.reads import Reads
from workers.kvstore.settings import StoreSettings
from workers.kvstore.write import Buffer, Write
from workers.kvstore.writing import Writer


class Sidecars:
    def __init__(
        self,
        settings: StoreSettings,
        clock: Clock,
        index: Index,
        policy: PolicyFeed,
        health: Health,
        reads: Reads,
        writer: Writer,
        foreign: Callable[[Lookup], str | None],
    ) -> None:
        self._settings, self._clock, self._index, self._policy = settings, clock, index, policy
        self._health, self._reads, self._writer, self._foreign = health, reads, writer, foreign
        self._threads = BoundedPool("sidecar", threads=2, bound=settings.read_queue)

    def put(
        self,
        chain: Sequence[BlockHash],
        kind: str,
        payload: Buffer,
        *,
        unit_end: bool,
        salt: bytes,
        fingerprint: str,
        retention_class: str,
        created: float | None = None,
    ) -> bool:
        """Store the sidecar `kind` of the chain's last block, if the class keeps such; behind the request. `created` as
        for `Store.put_run`."""
        if kind == PAGED or not chain:
            raise ValueError("a sidecar has a kind of its own and belongs to a block")
        if self._policy.current.ttl_us(sidecar_claim(retention_class, unit_end=unit_end)) < 0:
            return False
        return self._writer.put(
            Write(
                chain=list(chain),
                start=len(chain) - 1,
                blocks=[bytes(payload)],
                salt_id=salt_id(salt),
                fingerprint=fingerprint,
                retention_class=retention_class,
                kind=kind,
                unit_end=unit_end,
                created=self._clock.now() if created is None else created,
                deadline=time.monotonic() + self._settings.write_deadline_s,
            )
        )

    def renew(
        self,
        chain: Sequence[BlockHash],
        payloads: Sequence[tuple[int, bytes, float]],
        kind: str,
        *,
        salt: bytes,
        fingerprint: str,
        retention_class: str,
    ) -> Future[None] | None:
        """Sidecars at units' ends, as (position, bytes, created), were used where the store had no part in it: a use
        of those that it has, and a write of those that it lost. In the background; None when the queue is full."""
        blocks = list(chain)

        def use() -> None:
            names = [sidecar_hash(blocks[position], kind) for position, _, _ in payloads]
            try:
                lookup = self._index.locate(short_names(names))
                if self._foreign(lookup) is not None:
                    return
                there = [run.extent for run in lookup.runs if run.count]
                if self._policy.current.ttl_us(sidecar_claim(retention_class, unit_end=True)) >= 0:
                    self._index.touch_ids(there, sidecar_claim(retention_class, unit_end=True))
            except IndexUnavailable:
                self._health.count("uses_failed")
                return
            for run, (position, data, created) in zip(lookup.runs, payloads, strict=True):
                if not run.count:
                    self.put(
                        blocks[: position + 1],
                        kind,
                        data,
                        unit_end=True,
                        salt=salt,
                        fingerprint=fingerprint,
                        retention_class=retention_class,
                        created=created,
                    )

        try:
            return self._threads.submit(use, deadline=time.monotonic() + self._settings.write_deadline_s)
        except PoolFull:
            self._health.count("uses_dropped")
            return None

    def fetch(
        self,
        chain: Sequence[BlockHash],
        positions: Sequence[int],
        kind: str,
        *,
        retention_class: str,
        choose: Callable[[set[int]], Sequence[int]],
    ) -> Future[dict[int, bytes]]:
        """`get` in the background, without a wait for room in the queue (then the answer is empty)."""
        blocks = list(chain)

        def read() -> dict[int, bytes]:
            return self.get(blocks, positions, kind, retention_class=retention_class, choose=choose)

        try:
            return self._threads.submit(read, deadline=time.monotonic() + self._settings.read_deadline_s)
        except PoolFull:
            self._health.count("reads_dropped_queue")
            nothing: Future[dict[int, bytes]] = Future()
            nothing.set_result({})
            return nothing

    def close(self, timeout_s: float) -> None:
        self._threads.close(timeout_s)

    def get(
        self,
        chain: Sequence[BlockHash],
        positions: Sequence[int],
        kind: str,
        *,
        retention_class: str,
        choose: Callable[[set[int]], Sequence[int]] | None = None,
        deadline_s: float | None = None,
    ) -> dict[int, bytes]:
        """Verified sidecars of the blocks at `positions`; what is missing is left out. Counts as their use. `choose`
        says which of those that are there are to be read; without it all are."""
        names = [sidecar_hash(chain[position], kind) for position in positions]
        try:
            lookup = self._index.locate(short_names(names))
            policy = self._policy.ensure(lookup.policy_version)
        except (IndexUnavailable, PolicyError):
            self._health.count("lookups_failed")
            return {}
        if self._foreign(lookup) is not None:
            return {}
        now, wanted, used = self._index.now_us(), [], []
        for number, run in enumerate(lookup.runs):
            if run.count and policy.live(run.claims, now):
                wanted.append(Segment(run.extent, run.offset, 1, number))
        if choose is not None:
            chosen = set(choose({positions[segment.position] for segment in wanted}))
            wanted = [segment for segment in wanted if positions[segment.position] in chosen]
        groups, futures = self._reads.submit(wanted, names)
        deadline = time.monotonic() + (self._settings.read_deadline_s if deadline_s is None else deadline_s)
        out: dict[int, bytes] = {}
        for group, future in zip(groups, futures, strict=True):
            with self._reads.gather(group[0].position, [group], [future], deadline) as run_data:
                for segment, block in zip(group, run_data.blocks, strict=False):
                    out[positions[segment.position]] = bytes(block)
                    used.append(segment.extent)
        try:
            self._index.touch_ids(used, sidecar_claim(retention_class, unit_end=True))
        except IndexUnavailable:
            self._health.count("uses_failed")
        return out
