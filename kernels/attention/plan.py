"""What attention needs to know of a step, worked out once and used by every layer; each path's part when it is asked
for."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch


@dataclass(frozen=True, slots=True)
class Span:
    """Rows [start, start + count) of the flat batch belong to one request with `context` tokens cached before them.

    `slots` are the request's blocks; it covers at least `context + count` tokens.
    """

    start: int
    count: int
    context: int
    slots: list[int]

    @property
    def length(self) -> int:
        return self.context + self.count


@dataclass(frozen=True, slots=True)
class SinglePlan:
    """Requests with one row each, as one ragged list of blocks: N blocks of R requests.

    `rows` [R] are their rows in the batch, `blocks` [N] the slots, `owners` [N] says which of the R requests a block
    belongs to; `last` [R] are the requests' last blocks among the N, and `unwritten` [R, rows per block] is true for
    the rows of those that lie past the request's end.
    """

    rows: torch.Tensor
    blocks: torch.Tensor
    owners: torch.Tensor
    last: torch.Tensor
    unwritten: torch.Tensor


@dataclass(frozen=True, slots=True)
class ManyPlan:
    """A request with several rows. `mask` [count, length] is 0 or -inf; None where nothing was cached before."""

    span: Span
    blocks: torch.Tensor
    mask: torch.Tensor | None


class AttentionPlan:
    """`spans` in the order of their rows; `write_slots` and `write_rows` int64 [n] are where each row's key and value
    go. With `invariant`, results are equal to the bit in any company.
    """

    def __init__(self, spans: list[Span], block_rows: int, invariant: bool) -> None:
        self.spans = spans
        self.block_rows = block_rows
        self.invariant = invariant
        slots: list[int] = []
        rows: list[int] = []
        for span in spans:
            for position in range(span.context, span.length):
                slots.append(span.slots[position // block_rows])
                rows.append(position % block_rows)
        self.write_slots = torch.tensor(slots, dtype=torch.int64)
        self.write_rows = torch.tensor(rows, dtype=torch.int64)

    @classmethod
    def build(cls, spans: list[Span], block_rows: int, *, invariant: bool = False) -> AttentionPlan:
        return cls(spans, block_rows, invariant)

    @cached_property
    def single(self) -> SinglePlan | None:
        spans = [span for span in self.spans if span.count == 1]
        return _single(spans, self.block_rows) if spans else None

    @cached_property
    def many(self) -> list[ManyPlan]:
        return [_many(span, self.block_rows) for span in self.spans if span.count > 1]

    @cached_property
    def ragged(self) -> tuple[torch.Tensor, torch.Tensor]:
        """(int64 [spans, 4] of start, count, context and where the span's slots begin; int64 of all used slots)."""
        rows: list[list[int]] = []
        tables: list[int] = []
        for span in self.spans:
            rows.append([span.start, span.count, span.context, len(tables)])
            tables.extend(_used_slots(span, self.block_rows))
        return torch.tensor(rows, dtype=torch.int64).view(-1, 4), torch.tensor(tables, dtype=torch.int64)


def _used_slots(span: Span, block_rows: int) -> list[int]:
    return span.slots[: -(-span.length // block_rows)]


def _single(spans: list[Span], block_rows: int) -> SinglePlan:
    blocks: list[int] = []
    owners: list[int] = []
    last: list[int] = []
    filled: list[int] = []
    for owner, span in enumerate(spans):
        used = _used_slots(span, block_rows)
        blocks.extend(used)
        owners.extend([owner] * len(used))
        last.append(len(blocks) - 1)
        filled.append(span.length - (len(used) - 1) * block_rows)
    unwritten = torch.arange(block_rows) >= torch.tensor(filled)[:, None]
    return SinglePlan(
        rows=torch.tensor([span.start for span in spans]),
        blocks=torch.tensor(blocks),
        owners=torch.tensor(owners),
        last=torch.tensor(last),
        unwritten=unwritten,
    )


def _many(span: Span, block_rows: int) -> ManyPlan:
    mask = None
    if span.context:
        # Everything up to and including the row's own position: column <= context + row.
        mask = torch.full((span.count, span.length), -torch.inf).triu_(span.context + 1)
    return ManyPlan(span, torch.tensor(_used_slots(span, block_rows)), mask)
