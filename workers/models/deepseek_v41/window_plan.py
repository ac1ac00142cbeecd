"""Which window rows each row of a step sees, and where its own goes (V4.1 specification, sections 5.1 and 9.1).

A query at p sees max(floor, p-W+1)..p. What the step itself computes is read from the step, what is older from the
rings, which are written afterwards: so a run may be longer than its ring and still see all of its own rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kernels.quantization import Places
from workers.models.deepseek_v41.runs import Runs


@dataclass(frozen=True, slots=True)
class WindowPlan:
    """`history`: ring rows from before the step. `index` int64 [n, W] points into history and the set's rows, joined.

    Where `bias` [n, W], 0 or -inf, hides a row, the index names the query's own. `rows` of the set go into the rings at
    `places`; None stands for all.
    """

    history: Places
    index: torch.Tensor
    bias: torch.Tensor
    rows: torch.Tensor | None
    places: Places


def plan_windows(
    runs: Runs,
    positions: torch.Tensor,
    *,
    window: int,
    ring_rows: int,
    dtype: torch.dtype,
    tails: bool,
) -> WindowPlan:
    """`tails`: rows of a prompt's tail see nothing from before it (layers after `cut` of a trimmed prefill)."""
    owner = runs.owner
    floor = runs.rings_from[owner]
    if tails:
        tail = (runs.prompt - window).clamp(min=0)[owner]
        floor = torch.where(positions >= tail, torch.maximum(floor, tail), floor)
    first = runs.first[owner]

    # History of a run: positions [oldest, first), flat over all runs.
    oldest = torch.maximum(runs.rings_from, runs.first - (window - 1)).clamp(min=0)
    held = (runs.first - oldest).clamp(min=0)
    ends = held.cumsum(0)
    total = int(ends[-1]) if len(runs) else 0
    of_run = torch.repeat_interleave(held)
    past = torch.arange(total) - (ends - held)[of_run] + oldest[of_run]
    history = Places(runs.seat[of_run], past % ring_rows)

    seen = positions[:, None] + torch.arange(1 - window, 1)
    own = (total + runs.start - runs.first)[owner]
    older = (ends - held - oldest)[owner]
    index = torch.where(seen >= first[:, None], seen + own[:, None], seen + older[:, None])
    hidden = seen < floor[:, None]
    index = torch.where(hidden, (positions + own)[:, None], index)
    bias = torch.zeros(index.shape, dtype=dtype).masked_fill_(hidden, -torch.inf)

    rows = None
    if any(run.count > ring_rows for run in runs.runs):
        rows = (positions >= (runs.end - ring_rows)[owner]).nonzero()[:, 0]
    kept = slice(None) if rows is None else rows
    return WindowPlan(history, index, bias, rows, Places(runs.seat[owner][kept], positions[kept] % ring_rows))
