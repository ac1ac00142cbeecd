"""Attention over the window and the chosen latents (V4.1 specification, section 5.1).

    ql = rms(wq_a x; q_norm)
    q  = RoPE((wq_b ql) per head, p)
    kv = RoPE(rms(wkv x; kv_norm), p)                 # key = value, one row per token
    o  = softmax with sink over window and latents    # scale head_dim^-0.5
    o  = RoPE^-1(o, p)                                # undo the rotation that value rows carry
    y  = wo_b( concat_g( wo_a[g] . o[heads of group g] ) )

The sink joins the denominator only. A query sees window rows max(floor, p-W+1)..p and the selected latents; a latent
may cover positions inside the window.
"""

from collections.abc import Sequence

import torch

from kernels import sparse_attention
from kernels.sparse_attention import Source
from workers.models.deepseek_v41.config import DeepseekV41Config
from workers.models.deepseek_v41.norm import rms_norm
from workers.models.deepseek_v41.rope import norm_rotate, rotate
from workers.models.deepseek_v41.weights import WeightShelf


class Attention:
    """The attention of one layer or draft stage, row by row; its caches are the caller's.

    `there` and `back` are the turns of the rows' positions.
    """

    def __init__(self, config: DeepseekV41Config, shelf: WeightShelf, name: str) -> None:
        self.config = config
        self.wq_a, self.wq_b, self.wkv = (shelf.matrix(f"{name}.{w}") for w in ("wq_a", "wq_b", "wkv"))
        self.wo_a, self.wo_b = shelf.grouped(f"{name}.wo_a", config.o_groups), shelf.matrix(f"{name}.wo_b")
        self.q_norm, self.kv_norm = shelf.vector(f"{name}.q_norm"), shelf.vector(f"{name}.kv_norm")
        self.sink = shelf.vector(f"{name}.attn_sink")

    def window_row(self, x: torch.Tensor, there: torch.Tensor) -> torch.Tensor:
        """[T, head_dim]: the row that each token leaves in this layer's window, before it is packed."""
        return norm_rotate(self.wkv.linear(x), self.kv_norm, self.config.rms_norm_eps, there)

    def low_rank_queries(self, x: torch.Tensor) -> torch.Tensor:
        """ql [T, q_lora_rank]: feeds the queries and the indexer."""
        return rms_norm(self.wq_a.linear(x), self.q_norm, self.config.rms_norm_eps)

    def queries(self, ql: torch.Tensor, there: torch.Tensor) -> torch.Tensor:
        """[T, heads, head_dim]"""
        c = self.config
        return rotate(self.wq_b.linear(ql).unflatten(-1, (c.num_attention_heads, c.head_dim)), there)

    def attend(self, queries: torch.Tensor, sources: Sequence[Source], bias: torch.Tensor) -> torch.Tensor:
        """o [T, heads, head_dim], still rotated."""
        scale = self.config.head_dim**-0.5
        return sparse_attention.sparse_attention(queries, sources, bias, self.sink, scale=scale)

    def output(self, attended: torch.Tensor, back: torch.Tensor) -> torch.Tensor:
        """y [T, D]"""
        o = rotate(attended, back)
        return self.wo_b.linear(self.wo_a.linear(o.flatten(1).unflatten(1, (self.config.o_groups, -1))))
