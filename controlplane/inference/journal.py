"""This gateway's journal: what it admitted is on disk before any worker hears of it, and stays until the ledger has it.

Records are written at once (a killed process loses none) and synced together by a thread (a host that loses power loses
none that a worker heard of). Counters of running requests are stores into mapped memory, a fraction of a microsecond
each. `metering.journal` describes the files and reads them after a crash.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import mmap
import os
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from pathlib import Path
from typing import Final

from controlplane.metering.events import Ended, Intent
from controlplane.metering.journal import LOCK_NAME, PROGRESS, PROGRESS_NAME, frame, remove

log = logging.getLogger(__name__)

SEGMENT_BYTES: Final = 4 * 1024 * 1024
_NO_PROGRESS: Final = (0, 0, 0, 0, 0)


class JournalFull(Exception):
    """The disk takes no more, or too many requests wait for the ledger; nothing can be admitted."""


class _Segment:
    """One file and how many requests of it the ledger does not have yet."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
        self.bytes = 0
        self.requests: Counter[int] = Counter()

    def close(self) -> None:
        os.close(self.descriptor)


class UsageJournal:
    """Of one process and event loop. `open_slots` bounds the requests at a time, `backlog` those the ledger lacks."""

    def __init__(self, root: Path, *, name: str, open_slots: int, backlog: int) -> None:
        self.name = name
        self._backlog = backlog
        self.folder = root / name
        root.mkdir(parents=True, exist_ok=True, mode=0o700)
        making = root / f".{name}"
        making.mkdir(mode=0o700)
        self._lock = os.open(making / LOCK_NAME, os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)  # before anybody can see the folder
        self._progress = _mapped(making / PROGRESS_NAME, open_slots * PROGRESS.size)
        making.rename(self.folder)
        self._free = deque(range(open_slots))
        self._slots: dict[int, int] = {}
        self._segments: dict[int, list[_Segment]] = {}
        """Segments that have records of a request, until the ledger has it."""
        self._number = 0
        self._seq = 0
        self._segment = self._new_segment()
        self._retired: set[_Segment] = set()
        self._syncer = _Syncer()
        self._closed = False

    @property
    def unsettled(self) -> int:
        """Requests that the ledger is not known to have."""
        return len(self._segments)

    def next_place(self) -> tuple[int, int]:
        """Sequence number and slot for an intent. Raises JournalFull."""
        if not self._free:
            raise JournalFull("every slot is taken")
        if len(self._segments) >= self._backlog:
            raise JournalFull(f"{len(self._segments)} requests wait for the ledger")
        self._seq += 1
        return self._seq, self._free.popleft()

    def give_up(self, seq: int, slot: int) -> None:
        """A place that no intent was written for."""
        if seq not in self._slots:
            self._free.append(slot)

    async def admit(self, intent: Intent) -> None:
        """Write and sync. Raises JournalFull; then the request must not run, and its place is free again."""
        self._slots[intent.seq] = intent.slot
        PROGRESS.pack_into(self._progress, intent.slot * PROGRESS.size, *_NO_PROGRESS)
        PROGRESS.pack_into(self._progress, intent.slot * PROGRESS.size, intent.seq, 0, 0, 0, 0)
        try:
            segment = self._write(intent.seq, frame(intent))
            await self._syncer.synced(segment.descriptor)
        except OSError as error:
            self.settled(intent.seq)  # it never ran: the ledger will not hear of it
            raise JournalFull(f"the journal cannot be written: {error}") from error

    def progress(self, seq: int, *, pool_hit: int, store_hit: int, miss: int, output: int) -> None:
        """What was counted so far, as it should be billed if this process died now."""
        if self._closed:
            return
        offset = self._slots[seq] * PROGRESS.size
        PROGRESS.pack_into(self._progress, offset, seq, pool_hit, store_hit, miss, output)

    def end(self, final: Ended) -> None:
        """Write the end. Where the disk refuses it, the counters are not given away: recovery reads them."""
        if self._closed:  # the gateway has stopped: recovery settles what it was cut off in
            return
        try:
            self._write(final.seq, frame(final))
        except OSError:
            log.exception("the end of request %d could not be written to the journal", final.seq)
            return
        self._release_slot(final.seq)

    def settled(self, seq: int) -> None:
        """The ledger has it. Its slot is free, also where its end could not be written; segments that only have such
        requests go.
        """
        self._release_slot(seq)
        for segment in self._segments.pop(seq, ()):
            del segment.requests[seq]
            self._drop_if_done(segment)

    def close(self, *, everything_settled: bool) -> None:
        """Let go. What the ledger lacks stays on disk, for whoever settles abandoned journals."""
        self._closed = True
        self._syncer.stop()
        for segment in {self._segment, *self._retired}:
            segment.close()
        self._progress.close()
        if everything_settled and not self._segments:
            remove(self.folder)
        os.close(self._lock)

    def _release_slot(self, seq: int) -> None:
        slot = self._slots.pop(seq, None)
        if slot is not None:
            self._free.append(slot)

    def _write(self, seq: int, data: bytes) -> _Segment:
        if self._segment.bytes >= SEGMENT_BYTES:
            full, self._segment = self._segment, self._new_segment()
            self._retired.add(full)
            self._drop_if_done(full)
        segment = self._segment
        written = os.write(segment.descriptor, data)
        segment.bytes += written
        if written != len(data):  # a full disk: what follows in this file could not be read
            segment.bytes = SEGMENT_BYTES
            raise OSError(f"{written} of {len(data)} bytes were written")
        if seq not in segment.requests:
            segment.requests[seq] = 1
            self._segments.setdefault(seq, []).append(segment)
        return segment

    def _new_segment(self) -> _Segment:
        self._number += 1
        return _Segment(self.folder / f"{self._number:06d}.log")

    def _drop_if_done(self, segment: _Segment) -> None:
        if segment in self._retired and not segment.requests:
            self._retired.discard(segment)
            self._syncer.close_later(segment.close)
            segment.path.unlink()


def _mapped(path: Path, size: int) -> mmap.mmap:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        os.truncate(descriptor, size)
        return mmap.mmap(descriptor, size)
    finally:
        os.close(descriptor)


class _Syncer:
    """One thread that syncs for everybody who waits, as often as the disk can."""

    def __init__(self) -> None:
        self._wake = threading.Condition()
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []
        self._closing: list[Callable[[], None]] = []
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="journal-sync", daemon=True)
        self._thread.start()

    async def synced(self, descriptor: int) -> None:
        """When all that was written to `descriptor` before is on disk. Raises OSError."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        with self._wake:
            self._waiting.append((descriptor, future))
            self._wake.notify()
        await future

    def close_later(self, close: Callable[[], None]) -> None:
        """Close a file between two syncs: its number must not be another file's in the middle of one."""
        with self._wake:
            self._closing.append(close)
            self._wake.notify()

    def stop(self) -> None:
        with self._wake:
            self._stopped = True
            self._wake.notify()
        self._thread.join(timeout=10)

    def _run(self) -> None:
        while True:
            with self._wake:
                while not (self._waiting or self._closing or self._stopped):
                    self._wake.wait()
                waiting, self._waiting = self._waiting, []
                closing, self._closing = self._closing, []
                stopped = self._stopped
            for descriptor in {descriptor for descriptor, _ in waiting}:
                self._sync(descriptor, [future for wanted, future in waiting if wanted == descriptor])
            for close in closing:
                close()
            if stopped and not waiting:
                return

    @staticmethod
    def _sync(descriptor: int, futures: list[asyncio.Future[None]]) -> None:
        error: OSError | None = None
        try:
            os.fdatasync(descriptor)
        except OSError as failed:
            error = failed
        loop = futures[0].get_loop()
        try:
            loop.call_soon_threadsafe(_resolve, futures, error)
        except RuntimeError:  # the loop is closed: nobody waits any more
            log.info("the loop ended before the journal was synced")


def _resolve(futures: list[asyncio.Future[None]], error: OSError | None) -> None:
    for future in futures:
        if future.done():
            continue
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)


def journal_name(gateway: str) -> str:
    """Unique on this host over restarts."""
    return f"{gateway}-{time.time_ns():x}"
