"""Stores of rows for one sequence: a ring of window rows, a growing list of paged rows, a ring of open-group inputs.

Plain objects for the numerics model; the engine keeps the same rows in its block pool.
"""

import torch

from kernels.quantization import RowFormat, Rows
from workers.models.deepseek_v41.attention import WindowRows
from workers.models.deepseek_v41.errors import CacheError


def empty_rows(count: int, channels: int, row_format: RowFormat, dtype: torch.dtype, device: torch.device) -> Rows:
    """Unwritten planes for `count` rows, of exactly the bytes that the format packs a row into."""
    if row_format is RowFormat.FLOAT:
        return Rows(row_format, torch.zeros((count, channels), dtype=dtype, device=device))
    data = torch.zeros((count, channels // row_format.channels_per_byte), dtype=torch.uint8, device=device)
    scales = torch.zeros((count, channels // row_format.channels_per_scale), dtype=torch.uint8, device=device)
    return Rows(row_format, data, scales)


def _put(target: Rows, index: torch.Tensor | slice, source: Rows) -> None:
    for plane, values in zip(target.planes(), source.planes(), strict=True):
        plane[index] = values


def _joined(first: Rows, second: Rows) -> Rows:
    planes = [torch.cat(pair) for pair in zip(first.planes(), second.planes(), strict=True)]
    return Rows(first.format, *planes)


def _cut(rows: Rows, part: slice) -> Rows:
    return Rows(rows.format, *(plane[part] for plane in rows.planes()))


class WindowRing:
    """The last rows of one layer, by position modulo capacity; holds positions [begin, end).

    The capacity is the window and a draft more, so that rejected tokens evict nothing that is still needed
    (section 9.1).
    """

    def __init__(self, rows: Rows) -> None:
        self.rows, self.capacity = rows, len(rows)
        self.begin = self.end = 0

    def span(self, first: int, last: int) -> Rows:
        """Rows of positions [first, last), oldest first. Raises `CacheError` when the ring no longer has them."""
        if first < last and not self.begin <= first <= last <= self.end:
            raise CacheError(f"window rows [{first}, {last}) are not held; the ring has [{self.begin}, {self.end})")
        return self.rows.take(torch.arange(first, last, device=self.rows.data.device) % self.capacity)

    def extend(self, first: int, rows: Rows, reach: int) -> WindowRows:
        """Write rows at positions first.. and return them with up to `reach` rows before them.

        Rows that do not follow on what is held start the ring afresh: nothing older is visible from there.
        """
        if first != self.end:
            self.reset(first)
        oldest = max(self.begin, first - reach)
        run = WindowRows(oldest, _joined(self.span(oldest, first), rows))
        self.end = first + len(rows)
        kept = _cut(rows, slice(-self.capacity, None))
        positions = torch.arange(self.end - len(kept), self.end, device=self.rows.data.device)
        _put(self.rows, positions % self.capacity, kept)
        self.begin = max(self.begin, self.end - self.capacity)
        return run

    def reset(self, position: int) -> None:
        self.begin = self.end = position

    def require(self, length: int, reach: int) -> None:
        """Raise `CacheError` unless a query at `length` still finds its `reach` rows, those overwritten included."""
        overwritten = self.end - self.begin == self.capacity
        if length < self.begin or (overwritten and max(length - reach, 0) < self.begin):
            raise CacheError(f"cannot go back to {length}: the ring has [{self.begin}, {self.end})")

    def truncate(self, length: int) -> None:
        """Forget positions from `length` on."""
        self.end = min(self.end, length)


class PagedRows:
    """Rows of one layer that live as long as the prefix: one per `ratio` tokens, by group number."""

    def __init__(self, rows: Rows) -> None:
        self.rows = rows

    def write(self, first: int, rows: Rows) -> None:
        needed = first + len(rows)
        if needed > len(self.rows):
            spare = max(needed, 2 * len(self.rows)) - len(self.rows)
            self.rows = Rows(
                self.rows.format,
                *(torch.cat((p, p.new_zeros((spare, *p.shape[1:])))) for p in self.rows.planes()),
            )
        _put(self.rows, slice(first, needed), rows)

    def view(self, count: int) -> Rows:
        """The first `count` rows, where they lie."""
        return _cut(self.rows, slice(0, count))


class OpenGroups:
    """k and g of the last tokens of a ratio-2 source (float32), by position modulo capacity.

    One token is enough to go on; draft + 2 are kept so that a rejected draft may end inside an older group.
    """

    def __init__(self, capacity: int, channels: int, dtype: torch.dtype, device: torch.device) -> None:
        self.values = torch.zeros((capacity, 2, channels), dtype=dtype, device=device)

    def write(self, first: int, projected: torch.Tensor) -> None:
        capacity = len(self.values)
        kept = projected[-capacity:]
        last = first + len(projected)
        self.values[torch.arange(last - len(kept), last, device=kept.device) % capacity] = kept

    def at(self, position: int) -> torch.Tensor:
        """[1, 2, channels]"""
        return self.values[position % len(self.values)][None]
