"""Reading runs: extents are read side by side, every block is checked against its CRC-32C before anyone sees it.

Bytes land in buffers of the store, never in the caller's memory: a read that hangs past its deadline may still write
when the caller has long gone on.
"""

from __future__ import annotations

import os
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass, field
from typing import Final

from workers.identity import BlockHash
from workers.kvstore.extent import HASH_BYTES, ExtentError, ExtentId, Layout, checksum
from workers.kvstore.files import Root, read_into
from workers.kvstore.index import Location

PIECE_BYTES: Final = 512 * 1024
"""Read and check this much at a time: it is still in the processor's cache when it is checked."""
SEGMENT_BLOCKS: Final = 64
"""Longer runs of one extent are read by several threads."""
GROUP_BYTES: Final = 1 << 20
"""Neighbouring segments that are smaller together are one piece of work: handing work over costs more than they do."""


class BufferPool:
    """Reused buffers in power-of-two sizes (fresh pages cost more than the read); keeps at most `bound` bytes."""

    def __init__(self, bound: int) -> None:
        self._bound = bound
        self._kept = 0
        self._free: dict[int, deque[bytearray]] = {}
        self._lock = threading.Lock()

    def take(self, size: int) -> bytearray:
        """A buffer of at least `size` bytes with arbitrary content."""
        rounded = 1 << max(16, (size - 1).bit_length())
        with self._lock:
            free = self._free.get(rounded)
            if free:
                self._kept -= rounded
                return free.pop()
        return bytearray(rounded)

    def give(self, buffer: bytearray) -> None:
        with self._lock:
            if self._kept + len(buffer) <= self._bound:
                self._kept += len(buffer)
                self._free.setdefault(len(buffer), deque()).append(buffer)


class HeaderCache:
    """Decoded headers of extents, which never change; bounded by their blocks."""

    def __init__(self, most_blocks: int) -> None:
        self._most = most_blocks
        self._blocks = 0
        self._layouts: OrderedDict[ExtentId, Layout] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, extent: ExtentId) -> Layout | None:
        with self._lock:
            layout = self._layouts.get(extent)
            if layout is not None:
                self._layouts.move_to_end(extent)
            return layout

    def put(self, extent: ExtentId, layout: Layout) -> None:
        with self._lock:
            if extent not in self._layouts:
                self._layouts[extent] = layout
                self._blocks += layout.header.blocks
            while self._blocks > self._most:
                _, old = self._layouts.popitem(last=False)
                self._blocks -= old.header.blocks

    def drop(self, extent: ExtentId) -> None:
        with self._lock:
            old = self._layouts.pop(extent, None)
            if old is not None:
                self._blocks -= old.header.blocks


@dataclass(slots=True)
class Segment:
    """Blocks `count` from block `offset` of an extent; they are the chain's blocks from `position` on."""

    extent: ExtentId
    offset: int
    count: int
    position: int


def groups_of(segments: Sequence[Segment], block_bytes: int) -> list[list[Segment]]:
    """Neighbours together up to GROUP_BYTES, where a block has about `block_bytes`."""
    groups: list[list[Segment]] = []
    room = 0
    for segment in segments:
        size = segment.count * block_bytes
        if size > room:
            groups.append([])
            room = GROUP_BYTES
        groups[-1].append(segment)
        room -= size
    return groups


@dataclass(slots=True)
class SegmentData:
    """Verified blocks from the segment's start; fewer than asked for when something was wrong."""

    blocks: list[memoryview]
    buffer: bytearray | None
    error: Exception | None = None


@dataclass(slots=True)
class RunData:
    """Verified blocks from `start` of a chain on. Call `release` (or use `with`) when they are copied."""

    start: int
    blocks: list[memoryview] = field(default_factory=list)
    reason: str = ""
    """Why there are fewer than asked for; empty when all came."""
    _buffers: list[bytearray] = field(default_factory=list)
    _give: Callable[[bytearray], None] | None = None

    @property
    def nbytes(self) -> int:
        return sum(len(block) for block in self.blocks)

    def release(self) -> None:
        for block in self.blocks:
            block.release()
        self.blocks = []
        buffers, self._buffers = self._buffers, []
        if self._give is not None:
            for buffer in buffers:
                self._give(buffer)

    def __enter__(self) -> RunData:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def segments_of(runs: Sequence[Location], start: int, stop: int) -> list[Segment]:
    """What to read for the chain's blocks [start, stop), in order; shorter where the runs end before."""
    segments, position = [], 0
    for run in runs:
        first, last = max(position, start), min(position + run.count, stop)
        for at in range(first, last, SEGMENT_BLOCKS):
            count = min(SEGMENT_BLOCKS, last - at)
            segments.append(Segment(run.extent, run.offset + at - position, count, at))
        position += run.count
    return segments


class SegmentReader:
    """What a reading thread does. Never raises: what went wrong is in the result."""

    def __init__(self, root: Root, buffers: BufferPool, headers: HeaderCache) -> None:
        self._root = root
        self._buffers = buffers
        self._headers = headers
        self.block_bytes = GROUP_BYTES
        """Of a block that was read lately: sizes the groups."""

    def read_group(self, segments: Sequence[Segment], chain: Sequence[BlockHash]) -> list[SegmentData]:
        """In order, up to the first that went wrong."""
        read: list[SegmentData] = []
        for segment in segments:
            read.append(self.read(segment, chain))
            if read[-1].error is not None:
                break
        if read[0].blocks:
            self.block_bytes = len(read[0].blocks[0])
        return read

    def read(self, segment: Segment, chain: Sequence[BlockHash]) -> SegmentData:
        try:
            descriptor = self._root.open(segment.extent)
        except OSError as error:
            return SegmentData([], None, error)
        try:
            layout = self._headers.get(segment.extent)
            if layout is None:
                layout = self._root.read_header(segment.extent, descriptor)
                self._headers.put(segment.extent, layout)
            return self._read_blocks(descriptor, layout, segment, chain)
        except (OSError, ExtentError) as error:
            return SegmentData([], None, error)
        finally:
            os.close(descriptor)

    def _read_blocks(
        self, descriptor: int, layout: Layout, segment: Segment, chain: Sequence[BlockHash]
    ) -> SegmentData:
        first, end = segment.offset, segment.offset + segment.count
        if end > layout.header.blocks:
            raise ExtentError("identity", "the index names a block that the extent does not have")
        base = layout.offsets[first]
        buffer = self._buffers.take(layout.offsets[end] - base)
        view = memoryview(buffer)
        blocks: list[memoryview] = []
        error: Exception | None = None
        at = first
        try:
            while at < end:
                upto = at + 1
                while upto < end and layout.offsets[upto + 1] - layout.offsets[at] <= PIECE_BYTES:
                    upto += 1
                read_into(descriptor, view[layout.offsets[at] - base : layout.offsets[upto] - base], layout.offsets[at])
                piece = [view[layout.offsets[n] - base : layout.offsets[n + 1] - base] for n in range(at, upto)]
                where = segment.position + at - first
                self._check(layout, at, piece, chain[where : where + len(piece)], blocks)
                at = upto
        except (OSError, ExtentError) as problem:
            error = problem
        return SegmentData(blocks, buffer, error)

    def _check(
        self,
        layout: Layout,
        at: int,
        piece: list[memoryview],
        chain: Sequence[BlockHash],
        blocks: list[memoryview],
    ) -> None:
        """Add the blocks from number `at` on to `blocks`, up to the first that is not what it should be."""
        header, upto = layout.header, at + len(piece)
        found = [checksum(block) for block in piece]
        same = header.hashes[at * HASH_BYTES : upto * HASH_BYTES] == b"".join(chain)
        if same and tuple(found) == header.checksums[at:upto]:
            blocks += piece
            return
        for number, block in enumerate(piece):
            if header.block_hash(at + number) != chain[number]:
                raise ExtentError("identity", "another block than the index says")
            if found[number] != header.checksums[at + number]:
                raise ExtentError("checksum", f"block {at + number} of {header.extent_id.hex()} is damaged")
            blocks.append(block)

    def discard(self, future: Future[list[SegmentData]]) -> None:
        """Take the buffers back when a read ends that nobody waits for any more."""
        if future.cancelled() or future.exception() is not None:
            return
        for data in future.result():
            self.give_back(data)

    def give_back(self, data: SegmentData) -> None:
        if data.buffer is not None:
            for block in data.blocks:
                block.release()
            self._buffers.give(data.buffer)


def gather(
    start: int,
    groups: Sequence[Sequence[Segment]],
    futures: Sequence[Future[list[SegmentData]]],
    *,
    deadline: float,
    reader: SegmentReader,
    give: Callable[[bytearray], None],
    failed: Callable[[ExtentId, Exception], None],
) -> RunData:
    """Join segments in order up to the first that fails or misses the deadline (monotonic); the rest is discarded."""
    run = RunData(start, _give=give)
    for number, (group, future) in enumerate(zip(groups, futures, strict=True)):
        try:
            read = future.result(max(0.0, deadline - time.monotonic()))
        except (TimeoutError, CancelledError):
            run.reason = "deadline"
            failed(group[0].extent, TimeoutError("the read passed its deadline"))
            abandon(futures[number:], reader)
            return run
        except Exception as error:  # noqa: BLE001 - a reading thread never raises; if it does, it is a miss
            run.reason = type(error).__name__
            failed(group[0].extent, error)
            abandon(futures[number + 1 :], reader)
            return run
        for segment, data in zip(group, read, strict=False):
            run.blocks += data.blocks
            if data.buffer is not None:
                run._buffers.append(data.buffer)
            if data.error is not None:
                run.reason = data.error.reason if isinstance(data.error, ExtentError) else type(data.error).__name__
                failed(segment.extent, data.error)
                abandon(futures[number + 1 :], reader)
                return run
    return run


def abandon(futures: Sequence[Future[list[SegmentData]]], reader: SegmentReader) -> None:
    """Nobody takes what these read: what has not begun never does, and memory comes back."""
    for future in futures:
        if not future.cancel():
            future.add_done_callback(reader.discard)
