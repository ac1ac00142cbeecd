"""Seats: a running request's place in window rings and state sections (decision 0011).

What a request has besides blocks is not shared and not addressed by content: it lies in one row of a table, its seat,
from the moment it starts until it ends, is put aside, or (on a prefill worker) its sections were captured for decode.
"""

from __future__ import annotations

import numpy as np
import psutil
import torch

from workers.engine.arena import ArenaError
from workers.engine.layout import CacheLayout
from workers.protocol import RequestId

Sections = list[tuple[str, int, bytes]]
"""(name, version, bytes) of each of a request's sections."""

_SPARE_BYTES = 256 * 2**20


class OutOfSeats(Exception):
    """Asked for a seat when all are taken: a caller that did not check."""


class SectionMismatch(Exception):
    """The sections that came with a request are not those that this engine's model has."""


class SeatPool:
    """Which seats are free."""

    def __init__(self, total: int) -> None:
        self.total = total
        self._free = list(range(total - 1, -1, -1))

    @property
    def free(self) -> int:
        return len(self._free)

    def take(self) -> int:
        """Raises OutOfSeats."""
        if not self._free:
            raise OutOfSeats(f"all {self.total} seats are taken")
        return self._free.pop()

    def give_back(self, seat: int) -> None:
        assert 0 <= seat < self.total
        assert seat not in self._free, f"seat {seat} is given back twice"
        self._free.append(seat)

    def check(self, taken: list[int]) -> None:
        """Raise AssertionError unless every seat is free or one of `taken`, once."""
        assert sorted(self._free + taken) == list(range(self.total)), f"seats {taken} are taken, {self._free} free"


class SeatMemory:
    """The table: `rows` is uint8 [seats, seat_bytes]. Nothing for models that keep blocks only.

    Raises ArenaError where it does not fit into memory.
    """

    def __init__(self, layout: CacheLayout, seats: int) -> None:
        self._layout = layout
        size = seats * layout.seat_bytes
        free = psutil.virtual_memory().available
        if size and size + _SPARE_BYTES > free:
            raise ArenaError(
                f"windows and states of {seats} requests take {size / 2**20:,.0f} MiB, and {free / 2**20:,.0f} MiB of "
                "memory are free: lower max_running"
            )
        self.rows = torch.zeros((seats, layout.seat_bytes), dtype=torch.uint8)

    def clear(self, seat: int) -> None:
        """For a new request: what it has not written yet is zeros, nothing of anybody before it."""
        self.rows[seat].zero_()

    def capture(self, seat: int) -> Sections:
        """Copies of its sections."""
        row = self.rows[seat].numpy()
        return [
            (section.name, section.version, row[section.offset : section.offset + section.nbytes].tobytes())
            for section in self._layout.sections
        ]

    def install(self, seat: int, sections: Sections, request_id: RequestId) -> None:
        """Fill a seat with what `capture` gave elsewhere. Raises SectionMismatch and leaves the seat as it was."""
        wanted = {section.name: section for section in self._layout.sections}
        given = {name: (version, data) for name, version, data in sections}
        if given.keys() != wanted.keys() or len(sections) != len(given):
            names = [name for name, _, _ in sections]
            raise SectionMismatch(f"{request_id} came with sections {names}; the model here has {list(wanted)}")
        for name, section in wanted.items():
            version, data = given[name]
            if (version, len(data)) != (section.version, section.nbytes):
                raise SectionMismatch(
                    f"section {name} of {request_id} is version {version} with {len(data)} bytes; the model here has "
                    f"version {section.version} with {section.nbytes} bytes"
                )
        row = self.rows[seat].numpy()
        for name, section in wanted.items():
            row[section.offset : section.offset + section.nbytes] = np.frombuffer(given[name][1], np.uint8)
