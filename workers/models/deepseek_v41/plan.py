"""What a step's layers need to know about its rows, worked out once: who sees what, and where everything is written.

The batch is flat: rows of all requests, one after the other. Layers up to `cut` work on all of them (`early`), those
after it on the rows that are kept (`late`): the tail of each prompt and everything after it, whatever the chunks.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from workers.models.base import Batch, Segment
from workers.models.deepseek_v41.cache_spec import ring_rows
from workers.models.deepseek_v41.config import IMAGE_ID_COUNT, DeepseekV41Config
from workers.models.deepseek_v41.errors import InputError
from workers.models.deepseek_v41.groups import ClosingGroups, VisibleGroups, plan_closing
from workers.models.deepseek_v41.rope import Rotary, Turns
from workers.models.deepseek_v41.runs import Run, Runs, all_runs, without_heads
from workers.models.deepseek_v41.trim import Trim, tail_start
from workers.models.deepseek_v41.window_plan import WindowPlan, plan_windows


@dataclass(frozen=True, slots=True)
class RowSet:
    """Rows that go through the same layers together. `groups` by ratio of the latents that a layer reads."""

    runs: Runs
    positions: torch.Tensor
    is_image_id: torch.Tensor
    plain: Turns
    long: Turns
    window: WindowPlan
    groups: dict[int, VisibleGroups]

    def __len__(self) -> int:
        return len(self.positions)


@dataclass(frozen=True, slots=True)
class StepPlan:
    """`kept`: the early rows that go on after layer `cut`; None for all. `closing` by ratio.

    `text` int64 [n, N]: the token ids at each early row's position and before it, -1 before the text (for Engram).
    """

    early: RowSet
    late: RowSet
    kept: torch.Tensor | None
    closing: dict[int, ClosingGroups]
    text: torch.Tensor


class Planner:
    """Builds the plans of a model. `invariant`: everything in fixed shapes, so that no row depends on its company."""

    def __init__(self, config: DeepseekV41Config, dtype: torch.dtype, *, invariant: bool = False) -> None:
        self.config, self.dtype, self.invariant = config, dtype, invariant
        self.wide = torch.promote_types(dtype, torch.float32)
        self.window = self.block_tokens = config.sliding_window
        self.ratios = sorted({config.ratio(layer) for layer in config.kv_source_layer_ids})
        self.plain, self.long = Rotary.of_window_layers(config), Rotary.of_latent_layers(config)

    def plan(self, batch: Batch, trim: Trim) -> StepPlan:
        runs = all_runs(batch)
        tables = self._tables(batch.segments)
        early = self._rows(Runs.of(runs), batch.tokens, batch.positions, tables, encoder=True)
        late = replace(early, window=self._windows(early.runs, batch.positions, encoder=False, tails=False))
        kept = None
        if trim is Trim.MASK:
            late = self._rows(Runs.of(runs), batch.tokens, batch.positions, tables, encoder=False)
        elif trim is Trim.COMPACT:
            dropped = [self._dropped(run) for run in runs]
            if any(dropped):
                runs, kept = without_heads(runs, dropped)
            # Rows of a tail that began in an earlier chunk see nothing from before it either.
            if kept is not None or any(self.window < run.segment.prompt > run.first for run in runs):
                tokens = batch.tokens if kept is None else batch.tokens[kept]
                positions = batch.positions if kept is None else batch.positions[kept]
                late = self._rows(Runs.of(runs), tokens, positions, tables, encoder=False)
        return StepPlan(
            early=early,
            late=late,
            kept=kept,
            closing={ratio: self._closing(ratio, early, tables) for ratio in self.ratios},
            text=self._text(batch, early.runs),
        )

    def _dropped(self, run: Run) -> int:
        """How many rows of a run lie before the tail of its prompt."""
        return min(run.count, max(0, tail_start(run.segment.prompt, self.window) - run.first))

    def _tables(self, segments: list[Segment]) -> torch.Tensor:
        """The block tables as int64 [segments, most blocks]."""
        needed = [-(-(segment.context + segment.count) // self.block_tokens) for segment in segments]
        most = max(needed, default=0)
        rows = [[*s.slots[:count], *[0] * (most - count)] for s, count in zip(segments, needed, strict=True)]
        return torch.tensor(rows, dtype=torch.int64).view(len(segments), most)

    def _windows(self, runs: Runs, positions: torch.Tensor, *, encoder: bool, tails: bool) -> WindowPlan:
        return plan_windows(
            runs,
            positions,
            window=self.window,
            ring_rows=ring_rows(self.config, encoder=encoder),
            dtype=self.wide,
            tails=tails,
        )

    def _rows(
        self, runs: Runs, tokens: torch.Tensor, positions: torch.Tensor, tables: torch.Tensor, *, encoder: bool
    ) -> RowSet:
        """`encoder`: rows of layers up to `cut`; else those that may be a prompt's tail."""
        c = self.config
        window = self._windows(runs, positions, encoder=encoder, tails=not encoder)
        own_tables = tables if len(runs) == len(tables) else tables[runs.number]
        groups = {
            ratio: VisibleGroups(
                runs=runs,
                tables=own_tables,
                ratio=ratio,
                block_rows=self.block_tokens // ratio,
                visible=torch.div(positions + 1, ratio, rounding_mode="floor"),
                invariant=self.invariant,
                index_heads=c.index_n_heads,
            )
            for ratio in self.ratios
        }
        return RowSet(
            runs=runs,
            positions=positions,
            is_image_id=(tokens >= c.image_token_id) & (tokens < c.image_token_id + IMAGE_ID_COUNT),
            plain=self.plain.turns(positions, self.dtype),
            long=self.long.turns(positions, self.dtype),
            window=window,
            groups=groups,
        )

    def _closing(self, ratio: int, rows: RowSet, tables: torch.Tensor) -> ClosingGroups:
        return plan_closing(
            rows.runs,
            rows.positions,
            tables[rows.runs.number],
            ratio=ratio,
            block_rows=self.block_tokens // ratio,
            open_rows=self.config.dspark_block_size + 2,
            rotary=self.long,
            dtype=self.dtype,
        )

    def _text(self, batch: Batch, runs: Runs) -> torch.Tensor:
        size = self.config.engram_max_ngram_size
        before = size - 1
        padded: list[int] = []
        for run in runs.runs:
            known = run.segment.before[-before:] if before else ()
            if len(known) < min(before, run.first):
                raise InputError(f"{len(known)} token ids before position {run.first}: Engram looks back at {before}")
            padded += [*[-1] * (before - len(known)), *known]
        # The ids before each run, then all of the step's: row i finds the id k back at i - k, or before its run.
        pool = torch.cat((torch.tensor(padded, dtype=torch.int64), batch.tokens))
        back = torch.arange(size)
        offset = (batch.positions - runs.first[runs.owner])[:, None] - back
        inside = torch.arange(len(batch.tokens))[:, None] - back + len(padded)
        outside = runs.owner[:, None] * before + before + offset
        return pool[torch.where(offset >= 0, inside, outside)]
