"""The pool's memory: one anonymous shared file that other processes may map, with a generation counter per block.

Layout (also `workers.protocol.ArenaOffer`): `blocks_total` little-endian u64 counters in a header of whole pages,
then the blocks. Every page is touched at the start, because a fresh shared page costs ten times a copy of it.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import tempfile

import numpy as np
import psutil
import torch

_PAGE = 4096
_SPARE = 256 * 2**20


class ArenaError(Exception):
    """The pool does not fit into memory; the message says how much was asked for and what is there."""


class Arena:
    """`blocks` is the memory as uint8 [blocks_total, block_bytes]; `fd` may be sent to another process."""

    def __init__(self, blocks_total: int, block_bytes: int) -> None:
        if blocks_total < 1 or block_bytes % 64:
            raise ValueError("an arena has at least one block, of a multiple of 64 bytes")
        self.blocks_total = blocks_total
        self.block_bytes = block_bytes
        self.header_bytes = -(-8 * blocks_total // _PAGE) * _PAGE
        size = self.header_bytes + blocks_total * block_bytes
        free = psutil.virtual_memory().available
        if size + _SPARE > free:
            raise ArenaError(
                f"a pool of {blocks_total} blocks takes {size / 2**20:,.0f} MiB, and {free / 2**20:,.0f} MiB of memory "
                "are free: lower pool_blocks"
            )
        self.fd = _anonymous_file()
        try:
            os.posix_fallocate(self.fd, 0, size)  # says now, not as a bus error later, that memory is short
        except OSError as error:
            os.close(self.fd)
            raise ArenaError(f"cannot get {size / 2**20:,.0f} MiB of shared memory: {error.strerror}") from error
        _seal(self.fd)
        populate = getattr(mmap, "MAP_POPULATE", 0)
        self._map = mmap.mmap(self.fd, size, flags=mmap.MAP_SHARED | populate)
        self._generations = np.frombuffer(self._map, dtype="<u8", count=blocks_total)
        everything = torch.frombuffer(self._map, dtype=torch.uint8, offset=self.header_bytes)
        self.blocks = everything.view(blocks_total, block_bytes)
        self._bytes = memoryview(self._map)

    def block(self, slot: int) -> memoryview:
        """The block's bytes, writable."""
        start = self.header_bytes + self._checked(slot) * self.block_bytes
        return self._bytes[start : start + self.block_bytes]

    def generation(self, slot: int) -> int:
        return int(self._generations[self._checked(slot)])

    def bump(self, slot: int) -> None:
        """The block changes its owner: whoever copies it at this moment finds out."""
        self._generations[self._checked(slot)] += np.uint64(1)

    def _checked(self, slot: int) -> int:
        if not 0 <= slot < self.blocks_total:
            raise IndexError(f"slot {slot} of {self.blocks_total}")
        return slot

    def close(self) -> None:
        """Close the descriptor; the memory goes when the last view of it does."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def _anonymous_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("galley-arena", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def _seal(descriptor: int) -> None:
    """Its size stands from now on, so that nobody who mapped it meets a page that went."""
    if hasattr(os, "memfd_create") and hasattr(fcntl, "F_ADD_SEALS"):
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
