"""Groups of tokens in the paged caches: which ones a step closes, and which ones its rows see.

Group j of a ratio r covers tokens rj..rj+r-1 and exists once its last token has been processed: a query at p sees
`floor((p + 1) / r)` of its request's groups (V4.1 specification, section 5.2).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch

from kernels.quantization import Places
from workers.models.deepseek_v41.rope import Rotary, Turns
from workers.models.deepseek_v41.runs import Run, Runs

SCORE_ELEMENTS = 2**21
"""Products of index queries and keys that are held at once."""
TILE_ROWS = 64
"""Rows of a long run that are scored against the same keys together."""
SHORT_RUN = 8
"""Runs of at most this many rows are scored row by row: tiles would be mostly padding."""
INVARIANT_ROWS = 16


@dataclass(frozen=True, slots=True)
class ClosingGroups:
    """The groups whose paged rows a step writes.

    `members` int64 [G, ratio] numbers their tokens in (`carried` open tokens from before the step, the step's rows),
    joined; `turns` belong to each group's first position. `open_rows` of the step stay in the open-group state at
    `open_places` (ratio 2 only).
    """

    carried: Places | None
    members: torch.Tensor
    turns: Turns
    places: Places
    open_rows: torch.Tensor | None
    open_places: Places | None


@dataclass(frozen=True, slots=True)
class ScoreTile:
    """Rows int64 [B, q] of a set that are scored at once: those of one line share a request, hence keys.

    `owners` [B] are their runs, `groups` the most that any of them sees. Lines that are too short repeat their last
    row.
    """

    rows: torch.Tensor
    owners: torch.Tensor
    groups: int


@dataclass(frozen=True)
class VisibleGroups:
    """The groups that the rows of a set see at one ratio."""

    runs: Runs
    tables: torch.Tensor
    """int64 [runs, blocks]"""
    ratio: int
    block_rows: int
    visible: torch.Tensor
    """int64 [n]: how many groups each row sees."""
    invariant: bool
    index_heads: int

    @cached_property
    def counts(self) -> list[int]:
        return [run.end // self.ratio for run in self.runs.runs]

    @cached_property
    def total(self) -> int:
        return sum(self.counts)

    @cached_property
    def most(self) -> int:
        return max(self.counts, default=0)

    @cached_property
    def base(self) -> torch.Tensor:
        """int64 [runs]: where each run's groups begin among all of them."""
        counts = torch.tensor(self.counts, dtype=torch.int64)
        return counts.cumsum(0) - counts

    @cached_property
    def places(self) -> Places:
        """Where all groups of all runs lie, flat [total]."""
        of_run = torch.repeat_interleave(torch.tensor(self.counts, dtype=torch.int64))
        group = torch.arange(self.total) - self.base[of_run]
        return self.locate(of_run, group)

    def locate(self, owner: torch.Tensor, group: torch.Tensor) -> Places:
        """Where the groups with these numbers of these runs lie."""
        block = torch.div(group, self.block_rows, rounding_mode="floor")
        return Places(self.tables[owner, block], group - block * self.block_rows)

    @cached_property
    def somewhere(self) -> Places:
        """Where some visible group lies, [1]; only where there is one."""
        owner = next(number for number, count in enumerate(self.counts) if count)
        return self.locate(torch.tensor([owner]), torch.tensor([0]))

    @cached_property
    def tiles(self) -> list[ScoreTile]:
        """All rows of the set in tiles, each row in one of them."""
        rows: list[_Line] = []
        lines: list[_Line] = []
        for owner, run in enumerate(self.runs.runs):
            if self.invariant or run.count <= SHORT_RUN:
                rows += _lines(run, owner, self.ratio, 1)
            else:
                lines += _lines(run, owner, self.ratio, TILE_ROWS)
        if self.invariant:
            # Always so many rows at once; the last tile is filled up with a row that is there anyway.
            parts = [rows[i : i + INVARIANT_ROWS] for i in range(0, len(rows), INVARIANT_ROWS)]
            return [_tile(part + [part[-1]] * (INVARIANT_ROWS - len(part)), 1) for part in parts]
        return [
            _tile(part, height)
            for height, lines in ((1, rows), (TILE_ROWS, lines))
            for part in _parts(lines, height * self.index_heads)
        ]


@dataclass(frozen=True, slots=True)
class _Line:
    """Rows first..last of a run, which see at most `groups`."""

    first: int
    last: int
    owner: int
    groups: int


def _lines(run: Run, owner: int, ratio: int, height: int) -> list[_Line]:
    lines = []
    for offset in range(0, run.count, height):
        last = min(run.count, offset + height) - 1
        lines.append(_Line(run.start + offset, run.start + last, owner, (run.first + last + 1) // ratio))
    return lines


def _parts(lines: list[_Line], products_per_group: int) -> list[list[_Line]]:
    """Lines in parts that take at most SCORE_ELEMENTS products each, those that see about as much side by side."""
    parts: list[list[_Line]] = []
    room = 0
    for line in sorted(lines, key=lambda line: line.groups, reverse=True):
        if not room:
            parts.append([])
            room = max(1, SCORE_ELEMENTS // max(1, products_per_group * line.groups))
        parts[-1].append(line)
        room -= 1
    return parts


def _tile(lines: list[_Line], height: int) -> ScoreTile:
    first, last, owners = torch.tensor([(line.first, line.last, line.owner) for line in lines]).unbind(1)
    rows = first[:, None]
    if height > 1:
        rows = torch.minimum(rows + torch.arange(height), last[:, None])
    return ScoreTile(rows, owners, max(line.groups for line in lines))


def plan_closing(
    runs: Runs,
    positions: torch.Tensor,
    tables: torch.Tensor,
    *,
    ratio: int,
    block_rows: int,
    open_rows: int,
    rotary: Rotary,
    dtype: torch.dtype,
) -> ClosingGroups:
    """tables int64 [runs, blocks]; `open_rows` is how many open tokens a request's state keeps."""
    owner = runs.owner
    # A group whose rows exist already is never written again.
    last = ((positions % ratio == ratio - 1) & (positions >= runs.paged_from[owner])).nonzero()[:, 0]
    begins = positions[last] - (ratio - 1)
    of_run = owner[last]
    block = torch.div(begins, ratio * block_rows, rounding_mode="floor")
    places = Places(tables[of_run, block], torch.div(begins, ratio, rounding_mode="floor") - block * block_rows)
    turns = rotary.turns(begins, dtype)
    if ratio == 1:
        return ClosingGroups(None, last[:, None], turns, places, None, None)
    before = begins < runs.first[of_run]
    carried = Places(runs.seat[of_run[before]], begins[before] % open_rows)
    opens = last - 1 + len(carried)
    opens[before] = torch.arange(len(carried))
    members = torch.stack((opens, last + len(carried)), dim=1)
    kept = None
    if any(run.count > open_rows for run in runs.runs):
        kept = (positions >= (runs.end - open_rows)[owner]).nonzero()[:, 0]
    part = slice(None) if kept is None else kept
    open_places = Places(runs.seat[owner][part], positions[part] % open_rows)
    return ClosingGroups(carried if len(carried) else None, members, turns, places, kept, open_places)
