"""The indexer: which latents a query attends to (V4.1 specification, section 5.3).

`iq = RoPE((wq_b ql), p)`, `w = weights_proj x * index_head_dim^-0.5 * index_n_heads^-0.5`,
`score[p, j] = sum_h w[p,h] relu(<iq[p,h], ik_j>)`, -inf for groups that p does not see yet.

The candidate source also keeps the best blocks of positions (the newest one forced in); index sources after it choose
among those only. The selection is the `index_topk` best, ties to the lowest position, and serves every layer up to the
next index source.
"""

from dataclasses import dataclass

import torch

from kernels import sparse_attention
from kernels.quantization import Rows, decode_rows, round_rows
from workers.models.deepseek_v41.config import DeepseekV41Config
from workers.models.deepseek_v41.formats import CacheFormats
from workers.models.deepseek_v41.norm import widen
from workers.models.deepseek_v41.rope import Rotary
from workers.models.deepseek_v41.weights import WeightShelf


@dataclass(frozen=True, slots=True)
class Choice:
    """selection int64 [T, K], -1 for none; candidates bool [T, blocks] once the candidate source has run."""

    selection: torch.Tensor
    candidates: torch.Tensor | None


class Indexer:
    """Index queries of one index-source layer."""

    def __init__(self, config: DeepseekV41Config, shelf: WeightShelf, name: str, layer: int, rotary: Rotary) -> None:
        self.config, self.rotary = config, rotary
        self.is_candidate_source = layer == config.candidate_source_layer_id
        self.is_restricted = layer > config.candidate_source_layer_id
        self.wq_b = shelf.weight(f"{name}.wq_b")
        self.weights_proj = shelf.weight(f"{name}.weights_proj")

    def choose(
        self,
        x: torch.Tensor,
        ql: torch.Tensor,
        positions: torch.Tensor,
        keys: Rows,
        visible: torch.Tensor,
        candidates: torch.Tensor | None,
        formats: CacheFormats,
    ) -> Choice:
        """x [T, D], ql [T, q_lora_rank], keys: those of the KV owner, visible int64 [T]: groups each query sees."""
        c = self.config
        most = int(visible.max()) if len(visible) else 0
        if most <= c.index_topk:
            # All of them; candidates would cover all of them too, since they hold at least index_topk positions.
            every = torch.arange(most, device=x.device).expand(len(x), most)
            return Choice(every.masked_fill(every >= visible[:, None], -1), candidates)
        queries = self.wq_b.linear(ql).unflatten(-1, (c.index_n_heads, c.index_head_dim))
        queries = round_rows(self.rotary.apply(queries, positions), formats.index_key)
        wide = widen(x)
        weights = self.weights_proj.linear(wide) * (c.index_head_dim**-0.5 * c.index_n_heads**-0.5)
        scores = sparse_attention.index_scores(queries, weights, decode_rows(keys, wide.dtype), visible)
        if self.is_candidate_source:
            candidates = sparse_attention.candidate_blocks(
                scores, visible, block_size=c.candidate_block_size, count=c.candidate_topk_blocks
            )
        elif self.is_restricted:
            assert candidates is not None, "the candidate source saw the same number of groups"
            scores = sparse_attention.restrict_to_blocks(scores, candidates, block_size=c.candidate_block_size)
        return Choice(sparse_attention.select_positions(scores, c.index_topk), candidates)
