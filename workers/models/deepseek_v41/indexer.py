"""The indexer: which latents a query attends to (V4.1 specification, section 5.3).

`iq = RoPE((wq_b ql), p)`, `w = weights_proj x * index_head_dim^-0.5 * index_n_heads^-0.5`,
`score[p, j] = sum_h w[p,h] relu(<iq[p,h], ik_j>)`, -inf for groups that p does not see yet.

The candidate source also keeps the best blocks of positions (the newest one forced in); index sources after it choose
among those only. The selection is the `index_topk` best, ties to the lowest position, and serves every layer up to the
next index source.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from kernels import index_selection, sparse_attention
from kernels.index_selection import Blocks, KeyTiles
from kernels.quantization import round_rows
from workers.models.deepseek_v41.config import DeepseekV41Config
from workers.models.deepseek_v41.formats import CacheFormats
from workers.models.deepseek_v41.groups import ScoreTile, VisibleGroups
from workers.models.deepseek_v41.norm import widen
from workers.models.deepseek_v41.rope import rotate
from workers.models.deepseek_v41.weights import WeightShelf

KEY_TILE = 128
"""Keys that are multiplied at once where results must not depend on how many there are."""

Candidates = list[torch.Tensor | None] | torch.Tensor
"""As `index_selection` gives them: int32 [T, blocks]. Or, in torch, bool [B, q, blocks] by score tile; None where a
tile's rows see few enough groups to take them all."""


@dataclass(frozen=True, slots=True)
class Choice:
    """selection int64 [T, K], -1 for none; candidates once the candidate source has run."""

    selection: torch.Tensor
    candidates: Candidates | None


class Indexer:
    """Index queries of one index-source layer."""

    def __init__(self, config: DeepseekV41Config, shelf: WeightShelf, name: str, layer: int) -> None:
        self.config = config
        self.is_candidate_source = layer == config.candidate_source_layer_id
        self.is_restricted = layer > config.candidate_source_layer_id
        self.wq_b = shelf.matrix(f"{name}.wq_b")
        self.weights_proj = shelf.matrix(f"{name}.weights_proj", exact=True)

    def queries(self, x: torch.Tensor, ql: torch.Tensor, there: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Index queries [T, h, d], not yet rounded as keys are, and head weights float32 [T, h]."""
        c = self.config
        queries = rotate(self.wq_b.linear(ql).unflatten(-1, (c.index_n_heads, c.index_head_dim)), there)
        weights = self.weights_proj.linear(widen(x)) * (c.index_head_dim**-0.5 * c.index_n_heads**-0.5)
        return queries, weights

    def choose(
        self,
        groups: VisibleGroups,
        query: Callable[[], tuple[torch.Tensor, torch.Tensor]],
        keys: Callable[[], KeyTiles | torch.Tensor],
        candidates: Candidates | None,
        formats: CacheFormats,
    ) -> Choice:
        """`query` and `keys` (tiles, or float [all visible groups, d]) are asked only where some row has to choose."""
        topk = self.config.index_topk
        width = topk if groups.invariant else min(groups.most, topk)
        if groups.most <= topk:
            # All of them; candidates would cover all of them too, since they hold at least index_topk positions.
            return Choice(_all(groups.visible, width), candidates)
        queries, weights = query()
        queries = round_rows(queries, formats.index_key)
        dense = keys()
        if isinstance(dense, KeyTiles):
            assert not isinstance(candidates, list), "the candidate source went another way"
            selection, blocks = index_selection.select(
                queries,
                weights,
                dense,
                groups.runs.owner,
                groups.visible,
                count=topk,
                width=width,
                blocks=self._blocks(candidates),
            )
            return Choice(selection, candidates if blocks is None else blocks)
        assert not isinstance(candidates, torch.Tensor), "the candidate source went another way"
        selection, found = self._choose_by_tiles(groups, queries, weights, dense, candidates, width)
        return Choice(selection, found if self.is_candidate_source else candidates)

    def _blocks(self, candidates: torch.Tensor | None) -> Blocks | None:
        c = self.config
        if not self.is_candidate_source and not self.is_restricted:
            return None
        assert self.is_candidate_source or candidates is not None, "the candidate source saw the same groups"
        allowed = None if self.is_candidate_source else candidates
        return Blocks(c.candidate_block_size, c.candidate_topk_blocks, allowed)

    def _choose_by_tiles(
        self,
        groups: VisibleGroups,
        queries: torch.Tensor,
        weights: torch.Tensor,
        dense: torch.Tensor,
        candidates: list[torch.Tensor | None] | None,
        width: int,
    ) -> tuple[torch.Tensor, list[torch.Tensor | None]]:
        topk = self.config.index_topk
        selection = groups.visible.new_full((len(groups.visible), width), -1)
        found: list[torch.Tensor | None] = []
        for number, tile in enumerate(groups.tiles):
            visible = groups.visible[tile.rows]
            if tile.groups <= topk:
                chosen, blocks = _all(visible, width), None
            else:
                scores = _scores(queries, weights, dense, visible, groups, tile)
                chosen, blocks = self._best(scores, visible, None if candidates is None else candidates[number])
            selection[tile.rows, : chosen.shape[-1]] = chosen
            found.append(blocks)
        return selection, found

    def _best(
        self, scores: torch.Tensor, visible: torch.Tensor, blocks: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        c = self.config
        if self.is_candidate_source:
            blocks = sparse_attention.candidate_blocks(
                scores, visible, block_size=c.candidate_block_size, count=c.candidate_topk_blocks
            )
        elif self.is_restricted:
            assert blocks is not None, "the candidate source saw the same groups"
            scores = sparse_attention.restrict_to_blocks(scores, blocks, block_size=c.candidate_block_size)
        return sparse_attention.select_positions(scores, c.index_topk), blocks


def _all(visible: torch.Tensor, width: int) -> torch.Tensor:
    every = torch.arange(width, device=visible.device)
    return torch.where(every < visible[..., None], every, -1)


def _scores(
    queries: torch.Tensor,
    weights: torch.Tensor,
    dense: torch.Tensor,
    visible: torch.Tensor,
    groups: VisibleGroups,
    tile: ScoreTile,
) -> torch.Tensor:
    """float32 [B, q, J] of a tile's rows; J is the most that any of them sees."""
    number = torch.arange(tile.groups, device=dense.device)
    own = (groups.base[tile.owners][:, None] + number).clamp_(max=groups.total - 1)
    return sparse_attention.index_scores(
        queries[tile.rows],
        weights[tile.rows],
        dense[own],
        visible,
        key_tile=KEY_TILE if groups.invariant else None,
    )
