"""One pass of a flat batch through the layers (V4.1 specification, sections 2, 5.4 and 10.1).

Windows and latents of a layer are written for every row of its set, in `Trim.COMPACT` those of layer `cut` too, before
the rows that no later layer needs are dropped there.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kernels.quantization import read_rows, round_rows, write_rows
from kernels.sparse_attention import Source
from workers.models.deepseek_v41.config import DeepseekV41Config
from workers.models.deepseek_v41.dspark import DSpark
from workers.models.deepseek_v41.hyper_connections import open_streams
from workers.models.deepseek_v41.latents import LatentReader
from workers.models.deepseek_v41.layer import Layer
from workers.models.deepseek_v41.layer_caches import LayerCaches
from workers.models.deepseek_v41.norm import widen
from workers.models.deepseek_v41.plan import RowSet, StepPlan
from workers.models.deepseek_v41.rope import Turns
from workers.models.deepseek_v41.tiling import Tiling


@dataclass(frozen=True, slots=True)
class Passed:
    """The streams after the last layer, of the late rows: residual [n, streams, D] and pre [n, streams].

    `experts`: int64 [n, k] that each row of each layer chose; layers that nobody went through are missing.
    """

    residual: torch.Tensor
    pre: torch.Tensor
    experts: list[torch.Tensor]


class ForwardPass:
    """The state of one pass on its way up the layers."""

    def __init__(
        self, config: DeepseekV41Config, layers: list[Layer], plan: StepPlan, caches: LayerCaches, tiling: Tiling
    ) -> None:
        self.config, self.layers, self.plan, self.caches, self.tiling = config, layers, plan, caches, tiling
        self.rows = plan.early
        self.experts: list[torch.Tensor] = []
        self.aux: list[torch.Tensor] = []

    def run(self, embedded: torch.Tensor, engram_rows: torch.Tensor, drafter: DSpark | None) -> Passed:
        """embedded [T, D], engram_rows int64 [T, Engram layers, columns]; leaves the drafter's context too."""
        c = self.config
        residual, pre = open_streams(embedded, c.hc_mult)
        self.dtype = widen(pre).dtype
        self.latents = LatentReader(self.caches, self.dtype)
        is_image = self.plan.text[:, 0] == c.image_token_id
        for number, layer in enumerate(self.layers):
            if drafter is not None and number in c.dspark_target_layer_ids:
                self.aux.append(residual.mean(1))
            if layer.engram is not None:
                fetched = layer.engram.fetch(engram_rows[:, c.engram_layer_ids.index(number)], residual.dtype)
                (residual,) = self.tiling(layer.engram.inject, residual, fetched, is_image)
            residual, pre = self._layer(number, residual, pre)
            if not len(residual):
                break
        if drafter is not None and len(residual):
            drafter.write_context(torch.cat(self.aux, dim=-1), self.rows, self.caches, self.tiling)
        return Passed(residual, pre, self.experts)

    def _turns(self, number: int) -> Turns:
        return self.rows.long if self.config.ratio(number) else self.rows.plain

    def _layer(self, number: int, residual: torch.Tensor, pre: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        layer, rows = self.layers[number], self.rows
        x, own = self.tiling(layer.enter, residual, pre, self._turns(number).there)
        window, bias = self._window(number, own, rows), rows.window.bias
        if layer.compressor is not None:
            self._write_paged(number, x)
        if number == self.config.cut:
            self.rows = self.plan.late
            if (kept := self.plan.kept) is not None:
                residual, pre, x = residual[kept], pre[kept], x[kept]
                self.aux = [rows_of[kept] for rows_of in self.aux]
                # Here every row still sees its whole window: those of layer `cut` are complete.
                assert window.index is not None
                window, bias = Source(window.rows, window.index[kept]), bias[kept]
            if not len(x):
                return residual, pre
        turns = self._turns(number)
        ql, queries = self.tiling(layer.query, x, turns.there)
        sources = [window]
        if self.config.ratio(number):
            self._choose(number, x, ql, turns)
            if (selected := self.latents.selected) is not None:
                sources.append(selected.source)
                bias = torch.cat((bias, selected.bias), dim=1)
        attended = self._attend(layer, queries, sources, bias)
        residual, pre, experts = self.tiling(layer.finish, residual, attended, turns.back, self.rows.is_image_id)
        self.experts.append(experts)
        return residual, pre

    def _window(self, number: int, own: torch.Tensor, rows: RowSet) -> Source:
        """The window rows that each query sees; the step's own go into the ring once the older ones are read."""
        ring, plan = self.caches.window(number), rows.window
        older = read_rows(ring, plan.history, self.dtype)
        if plan.rows is None:
            seen = write_rows(ring, plan.places, own, self.dtype)
            assert seen is not None
        else:
            seen = widen(round_rows(own, ring.format))
            write_rows(ring, plan.places, own[plan.rows])
        return Source(torch.cat((older, seen)), plan.index)

    def _write_paged(self, number: int, x: torch.Tensor) -> None:
        """Write the latents and index keys of the groups that the step closes; keep what stays open."""
        compressor = self.layers[number].compressor
        assert compressor is not None
        closing = self.plan.closing[compressor.ratio]
        (projected,) = self.tiling(lambda part: (compressor.project(part),), x)
        tokens = projected
        if closing.open_places is not None:
            state = self.caches.open_groups(number)
            if closing.carried is not None:
                tokens = torch.cat((state[closing.carried.block, closing.carried.row], projected))
            kept = projected if closing.open_rows is None else projected[closing.open_rows]
            state[closing.open_places.block, closing.open_places.row] = kept
        if not len(closing.members):
            return
        dtype = x.dtype
        latents, index_keys = self.tiling(
            lambda members, there: compressor.close(members, there, dtype), tokens[closing.members], closing.turns.there
        )
        write_rows(self.caches.latents(number), closing.places, latents)
        write_rows(self.caches.index_keys(number), closing.places, index_keys)

    def _choose(self, number: int, x: torch.Tensor, ql: torch.Tensor, turns: Turns) -> None:
        """Index sources choose anew; the others attend to what the last one chose."""
        indexer, owner = self.layers[number].indexer, self.config.kv_owner(number)
        if indexer is None:
            return
        assert owner is not None
        groups = self.rows.groups[self.config.ratio(number)]
        choice = indexer.choose(
            groups,
            lambda: self.tiling(indexer.queries, x, ql, turns.there),  # type: ignore[arg-type,return-value]
            lambda: self.latents.index_keys(owner, groups),
            self.latents.candidates,
            self.caches.formats,
        )
        self.latents.choose(owner, groups, choice)

    def _attend(self, layer: Layer, queries: torch.Tensor, sources: list[Source], bias: torch.Tensor) -> torch.Tensor:
        if self.tiling.rows is None:
            return layer.attention.attend(queries, sources, bias)
        numbers = torch.arange(len(queries))

        def attend(queries: torch.Tensor, bias: torch.Tensor, numbers: torch.Tensor) -> tuple[torch.Tensor]:
            return (layer.attention.attend(queries, [source.of(numbers) for source in sources], bias),)

        return self.tiling(attend, queries, bias, numbers)[0]
