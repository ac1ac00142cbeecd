"""Rebuilding the index from extent headers, verifying both against each other, and purging."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from workers.kvstore.clock import micros
from workers.kvstore.extent import PAGED, ExtentError, ExtentHeader, ExtentId, checksum, short_name
from workers.kvstore.files import Root, read_into
from workers.kvstore.health import Health, Trouble
from workers.kvstore.index import Claim, Index
from workers.kvstore.policy import claims_of_class, sidecar_claim

_PAGE: Final = 256
_ORPHAN_AGE_S: Final = 60.0
"""Younger files may be between their rename and their commit."""


@dataclass(slots=True)
class VerifyReport:
    extents: int = 0
    blocks: int = 0
    bytes: int = 0
    corrupt: list[str] = field(default_factory=list)
    """Extents with damaged headers or blocks (hex ids)."""
    orphans: list[str] = field(default_factory=list)
    """Files that the index does not know."""
    missing: list[str] = field(default_factory=list)
    """Extents of the index without a file."""
    repaired: int = 0
    seconds: float = 0.0


@dataclass(slots=True)
class RebuildReport:
    extents: int = 0
    blocks: int = 0
    unreadable: int = 0
    refused: int = 0
    seconds: float = 0.0


@dataclass(slots=True)
class PurgeReport:
    extents: int = 0
    """Removed: nobody claims them any more."""
    claims: int = 0
    unindexed: int = 0
    """Files that only their headers gave away."""


class Upkeep:
    """Methods raise IndexUnavailable or OSError, and can be called again."""

    def __init__(self, index: Index, root: Root, health: Health) -> None:
        self._index, self._root, self._health = index, root, health

    # -- rebuild -----------------------------------------------------------------------------------------------------

    def rebuild(self, store_id: str) -> RebuildReport:
        """Index every extent file that the index does not know. A file's time is its last use, and never earlier than
        that of what hangs below it, so that heads still go after tails."""
        began = time.monotonic()
        report = RebuildReport()
        self._index.adopt(store_id)
        known = self._known()
        found: list[tuple[ExtentHeader, float, int]] = []
        for extent, at in self._root.walk():
            if extent in known:
                continue
            try:
                header, size = self._header(extent)
                found.append((header, at, size))
            except (OSError, ExtentError):
                report.unreadable += 1
        found.sort(key=lambda item: item[0].depth + (item[0].kind != PAGED), reverse=True)
        below: dict[bytes, float] = {}
        for header, at, size in found:
            names = header.short_hashes()
            own = [below[name] for name in (names[i : i + 16] for i in range(0, len(names), 16)) if name in below]
            last = max(at, *own) if own else at
            parent = short_name(header.parent)
            below[parent] = max(last, below.get(parent, 0.0))
            answer = self._index.commit(
                header,
                header_claim(header),
                store_id=store_id,
                file_bytes=size,
                last_us=micros(last),
                file_time_us=micros(at),
                rebuild=True,
            )
            if answer == "stored":
                report.extents += 1
                report.blocks += header.blocks
            elif answer != "exists":
                report.refused += 1
                if answer == "purged":
                    self._root.remove(ExtentId(header.extent_id))
        self._health.clear(Trouble.INDEX_LOST)
        self._health.count("index_rebuilt")
        report.seconds = time.monotonic() - began
        return report

    def _known(self, *keys: str) -> set[ExtentId]:
        """Every extent of the index, and those that wait for their file's removal; or one of both."""
        with self._index.guarded() as client:
            return {
                ExtentId(extent)
                for key in keys or ("all", "trash")
                for extent, _ in client.zscan_iter(self._index.key(key), count=1000)
            }

    def _header(self, extent: ExtentId) -> tuple[ExtentHeader, int]:
        descriptor = self._root.open(extent)
        try:
            layout = self._root.read_header(extent, descriptor)
            return layout.header, layout.file_bytes
        finally:
            os.close(descriptor)

    # -- verify ------------------------------------------------------------------------------------------------------

    def verify(
        self, store_id: str, *, repair: bool = False, progress: Callable[[VerifyReport], None] | None = None
    ) -> VerifyReport:
        """Read every extent and compare with the index. With `repair`, damaged extents go and orphans are indexed."""
        began = time.monotonic()
        self._root.check(store_id)
        report = VerifyReport()
        known = self._known()
        seen: set[ExtentId] = set()
        corrupt: list[ExtentId] = []
        for extent, at in self._root.walk():
            seen.add(extent)
            report.extents += 1
            try:
                self._check_payload(extent, report)
            except FileNotFoundError:
                continue  # removed while we read
            except (OSError, ExtentError) as error:
                corrupt.append(extent)
                report.corrupt.append(extent.hex())
                self._health.count("verify_corrupt")
                self._health.report(Trouble.CORRUPT, f"{extent.hex()}: {error}")
                continue
            if extent not in known and self._index.clock.now() - at > _ORPHAN_AGE_S:
                report.orphans.append(extent.hex())
            if progress is not None and report.extents % 100 == 0:
                progress(report)
        gone = [e for e in self._known("all") & known if e not in seen and not self._root.where(e).exists()]
        report.missing = [extent.hex() for extent in gone]
        if repair:
            self._index.forget(corrupt, reason="corrupt")
            for extent in corrupt:
                self._root.remove(extent)
            self._index.forget(gone, reason="lost")
            report.repaired = len(corrupt) + len(gone)
            if report.orphans:
                report.repaired += self.rebuild(store_id).extents
            self._health.clear(Trouble.CORRUPT)
        report.seconds = time.monotonic() - began
        return report

    def _check_payload(self, extent: ExtentId, report: VerifyReport) -> None:
        descriptor = self._root.open(extent)
        try:
            layout = self._root.read_header(extent, descriptor)
            for number, wanted in enumerate(layout.header.checksums):
                block = bytearray(layout.header.lengths[number])
                read_into(descriptor, memoryview(block), layout.offsets[number])
                if checksum(block) != wanted:
                    raise ExtentError("checksum", f"block {number} is damaged")
                report.blocks += 1
                report.bytes += len(block)
        finally:
            os.close(descriptor)

    # -- purge -------------------------------------------------------------------------------------------------------

    def purge(
        self, *, salt_id: str | None = None, fingerprint: str | None = None, retention_class: str | None = None
    ) -> PurgeReport:
        """Remove a tenant's blocks, a model's, or what a class claims; writes handed over before now become void.

        Pools hear of it on the channel `purge` (`t:<salt id>`, `m:<fingerprint>` or `c:<class>`).
        """
        scopes = [f"{k}:{v}" for k, v in (("t", salt_id), ("m", fingerprint), ("c", retention_class)) if v is not None]
        if len(scopes) != 1:
            raise ValueError("purge by exactly one of tenant, model and class")
        names = claims_of_class(retention_class) if retention_class is not None else []
        with self._index.guarded() as client:
            marks = {scope: self._index.now_us() for scope in [*scopes, *(f"c:{name}" for name in names)]}
            client.hset(self._index.key("purged"), mapping=marks)
            client.publish(self._index.key("purge"), scopes[0])
        report = PurgeReport()
        for name in names:
            self._purge_claim(name, report)
        if not names:
            field_name, value = ("t", salt_id) if salt_id is not None else ("f", fingerprint)
            assert value is not None
            for batch in self._matching(field_name, value.encode()):
                report.extents += len(self._index.forget(batch, reason="purged"))
            for extent in self._matching_files(salt_id, fingerprint):
                self._root.remove(extent)
                report.unindexed += 1
        return report

    def _purge_claim(self, name: str, report: PurgeReport) -> None:
        key = self._index.key("u", name)
        while True:
            with self._index.guarded() as client:
                rows = client.zrange(key, 0, 63, withscores=True)
            if not rows:
                return
            released = self._index.release(
                [Claim(name, 1 << 52, ExtentId(extent)) for extent, _ in rows], reason="purged"
            )
            report.claims += released.claims
            report.extents += len(released.extents)

    def _matching(self, field_name: str, value: bytes) -> Iterator[list[ExtentId]]:
        extents = sorted(self._known())
        for at in range(0, len(extents), _PAGE):
            batch = extents[at : at + _PAGE]
            with self._index.guarded() as client:
                pipe = client.pipeline(transaction=False)
                for extent in batch:
                    pipe.hget(self._index.key("x").encode() + b":" + extent, field_name)
                found = pipe.execute()
            yield [extent for extent, held in zip(batch, found, strict=True) if held == value]

    def _matching_files(self, salt_id: str | None, fingerprint: str | None) -> Iterator[ExtentId]:
        known = self._known()
        for extent, _ in self._root.walk():
            if extent in known:
                continue
            try:
                header, _ = self._header(extent)
            except (OSError, ExtentError):
                continue  # its bytes are never served; verify reports it
            if header.salt_id == salt_id or header.fingerprint == fingerprint:
                yield extent


def header_claim(header: ExtentHeader) -> str:
    """The claim that an extent is rebuilt with: that of the class that wrote it."""
    if header.kind == PAGED:
        return header.retention_class
    return sidecar_claim(header.retention_class, unit_end=header.unit_end)
