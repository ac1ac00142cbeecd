"""The rows of each request in a set of rows: runs of neighbouring rows at neighbouring positions."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from workers.models.base import Batch, Segment


@dataclass(frozen=True, slots=True)
class Run:
    """Rows [start, start + count) of a set belong to segment number `number`, at positions `first`..."""

    number: int
    segment: Segment
    start: int
    count: int
    first: int

    @property
    def end(self) -> int:
        """The position after the last row's."""
        return self.first + self.count


@dataclass(frozen=True, slots=True)
class Runs:
    """All runs of a set, and their numbers as tensors; `owner` int64 [n] is each row's run, the others are by run."""

    runs: list[Run]
    owner: torch.Tensor
    start: torch.Tensor
    first: torch.Tensor
    end: torch.Tensor
    seat: torch.Tensor
    rings_from: torch.Tensor
    paged_from: torch.Tensor
    prompt: torch.Tensor
    number: torch.Tensor

    @classmethod
    def of(cls, runs: list[Run]) -> Runs:
        table = torch.tensor(
            [
                (r.start, r.first, r.end, s.seat, s.rings_from, s.paged_from, s.prompt, r.number)
                for r in runs
                for s in (r.segment,)
            ],
            dtype=torch.int64,
        ).view(len(runs), 8)
        counts = [run.count for run in runs]
        single = all(count == 1 for count in counts)
        owner = torch.arange(len(runs))
        return cls(runs, owner if single else owner.repeat_interleave(torch.tensor(counts)), *table.unbind(1))

    def __len__(self) -> int:
        return len(self.runs)


def all_runs(batch: Batch) -> list[Run]:
    return [Run(number, s, s.start, s.count, s.context) for number, s in enumerate(batch.segments) if s.count]


def without_heads(runs: list[Run], dropped: list[int]) -> tuple[list[Run], torch.Tensor]:
    """The runs without their first `dropped` rows each, and the numbers int64 of the rows that are left."""
    left: list[Run] = []
    rows: list[torch.Tensor] = []
    start = 0
    for run, head in zip(runs, dropped, strict=True):
        count = run.count - head
        if count:
            left.append(replace(run, start=start, count=count, first=run.first + head))
            rows.append(torch.arange(run.start + head, run.start + run.count))
            start += count
    return left, torch.cat(rows) if rows else torch.empty(0, dtype=torch.int64)
