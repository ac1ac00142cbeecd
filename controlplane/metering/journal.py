"""A gateway's journal on disk: its format, and what can be read of one whose gateway died.

A journal is a folder: `lock` (held with flock while the gateway lives), `progress` (counters of running requests, a
memory-mapped table: what was written there survives the process, whatever killed it) and segments `000001.log`... of
records: length and CRC-32 (four bytes each, little-endian), then msgpack of `Intent` or `Ended`. A record that was cut
off ends its segment.
"""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
import struct
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec

from controlplane.metering.events import GATEWAY_LOST, Counts, Ended, Intent, UsageEvent

log = logging.getLogger(__name__)

HEADER: Final = struct.Struct("<II")
PROGRESS: Final = struct.Struct("<QQQQQ")
"""Sequence number, pool hits, store hits, misses, output."""
LOCK_NAME: Final = "lock"
PROGRESS_NAME: Final = "progress"
RECORD_BOUND: Final = 64 * 1024

Record = Intent | Ended
_decoder: msgspec.msgpack.Decoder[Record] = msgspec.msgpack.Decoder(Record)


def frame(record: Record) -> bytes:
    body = msgspec.msgpack.encode(record)
    return HEADER.pack(len(body), zlib.crc32(body)) + body


def segments(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.log"))


def read_records(path: Path) -> Iterator[Record]:
    """Until the end, or the first record that is not whole."""
    data = path.read_bytes()
    offset = 0
    while offset + HEADER.size <= len(data):
        length, checksum = HEADER.unpack_from(data, offset)
        body = data[offset + HEADER.size : offset + HEADER.size + length]
        if length > RECORD_BOUND or len(body) < length or zlib.crc32(body) != checksum:
            break
        yield _decoder.decode(body)
        offset += HEADER.size + length
    if offset != len(data):
        log.warning("%s: %d bytes at the end are no whole record", path, len(data) - offset)


def read_events(folder: Path) -> list[UsageEvent]:
    """Every request of a journal, ended or not: those that were cut off have what their counters say was sent."""
    intents: dict[int, Intent] = {}
    ends: dict[int, Ended] = {}
    for path in segments(folder):
        for record in read_records(path):
            if isinstance(record, Intent):
                intents[record.seq] = record
            else:
                ends[record.seq] = record
    progress = _read_progress(folder / PROGRESS_NAME)
    ended_us = _last_change_us(folder)
    return [
        UsageEvent(
            journal=folder.name,
            intent=intent,
            final=ends.get(seq) or _cut_off(seq, progress.get(seq, Counts()), ended_us),
        )
        for seq, intent in intents.items()
    ]


def _cut_off(seq: int, counts: Counts, ended_us: int) -> Ended:
    return Ended(seq=seq, outcome=GATEWAY_LOST, ended_us=ended_us, **billable(counts, GATEWAY_LOST))


FREE_OUTCOMES: Final = frozenset(
    {
        GATEWAY_LOST, "no_workers", "stale_epoch", "protocol_version", "not_ready", "peer_lost", "transfer_failed",
        "out_of_blocks", "queue_full", "internal", "invalid_request", "context_length_exceeded", "failed",
        "deadline_exceeded",
    }
)  # fmt: skip
"""How requests end through our fault or before they ran. Where no token came of one, its prompt costs nothing."""


def billable(counts: Counts, outcome: str) -> dict[str, int]:
    """The classes that are billed, as fields of `Counts`."""
    if counts.output == 0 and outcome in FREE_OUTCOMES:
        return {"pool_hit": 0, "store_hit": 0, "miss": 0, "output": 0}
    return msgspec.structs.asdict(counts)


def _read_progress(path: Path) -> dict[int, Counts]:
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return {}
    whole = len(data) - len(data) % PROGRESS.size
    return {
        seq: Counts(pool_hit=pool, store_hit=store, miss=miss, output=output)
        for seq, pool, store, miss, output in PROGRESS.iter_unpack(data[:whole])
        if seq
    }


def _last_change_us(folder: Path) -> int:
    times = [path.stat().st_mtime_ns for path in folder.iterdir()]
    return max(times, default=time.time_ns()) // 1000


@contextmanager
def abandoned(root: Path) -> Iterator[list[Path]]:
    """Journals below `root` whose gateway is gone, locked for us meanwhile. The caller removes those it has settled."""
    held: list[int] = []
    found: list[Path] = []
    try:
        for folder in sorted(root.iterdir()) if root.is_dir() else ():
            descriptor = lock(folder)
            if descriptor is not None:
                held.append(descriptor)
                found.append(folder)
        yield found
    finally:
        for descriptor in held:
            os.close(descriptor)


def lock(folder: Path) -> int | None:
    """Descriptor that holds the journal's lock until it is closed; None where somebody has it, or it is gone."""
    try:
        descriptor = os.open(folder / LOCK_NAME, os.O_RDWR)
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


def remove(folder: Path) -> None:
    """The lock goes last but one: a folder without it is nobody's journal."""
    for path in segments(folder):
        path.unlink()
    shutil.rmtree(folder)
