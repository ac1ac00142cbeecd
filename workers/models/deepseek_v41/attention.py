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

from dataclasses import dataclass

import torch

from kernels import sparse_attention
from kernels.quantization import Rows, encode_rows
from workers.models.deepseek_v41.config import DeepseekV41Config
from workers.models.deepseek_v41.formats import CacheFormats
from workers.models.deepseek_v41.norm import rms_norm
from workers.models.deepseek_v41.rope import Rotary
from workers.models.deepseek_v41.weights import WeightShelf


@dataclass(frozen=True, slots=True)
class WindowRows:
    """A run of window rows: row i belongs to position first + i."""

    first: int
    rows: Rows


def window_index(positions: torch.Tensor, first: int, window: int, floor: torch.Tensor | int) -> torch.Tensor:
    """Row numbers int64 [T, window] that each query sees in a run starting at `first`; -1 below the run or `floor`."""
    seen = positions[:, None] + torch.arange(1 - window, 1, device=positions.device)
    least = torch.as_tensor(floor, device=positions.device).clamp(min=first)
    return (seen - first).masked_fill(seen < least.reshape(-1, 1), -1)


class Attention:
    """The attention of one layer or draft stage; its caches are the caller's."""

    def __init__(self, config: DeepseekV41Config, shelf: WeightShelf, name: str, rotary: Rotary) -> None:
        self.config, self.rotary = config, rotary
        self.wq_a, self.wq_b, self.wkv = (shelf.weight(f"{name}.{w}") for w in ("wq_a", "wq_b", "wkv"))
        self.wo_a, self.wo_b = shelf.weight(f"{name}.wo_a"), shelf.weight(f"{name}.wo_b")
        self.q_norm, self.kv_norm = shelf.vector(f"{name}.q_norm"), shelf.vector(f"{name}.kv_norm")
        self.sink = shelf.vector(f"{name}.attn_sink")

    def low_rank_queries(self, x: torch.Tensor) -> torch.Tensor:
        """ql [T, q_lora_rank]: feeds the queries and the indexer."""
        return rms_norm(self.wq_a.linear(x), self.q_norm, self.config.rms_norm_eps)

    def window_rows(self, x: torch.Tensor, positions: torch.Tensor, formats: CacheFormats) -> Rows:
        """The row that each token leaves in this layer's window, as it is stored."""
        kv = rms_norm(self.wkv.linear(x), self.kv_norm, self.config.rms_norm_eps)
        return encode_rows(self.rotary.apply(kv, positions), formats.window)

    def __call__(
        self, ql: torch.Tensor, positions: torch.Tensor, sources: list[tuple[Rows, torch.Tensor]]
    ) -> torch.Tensor:
        """y [T, D] for queries at positions [T]; sources: pools and the row numbers each query sees in them."""
        c = self.config
        q = self.wq_b.linear(ql).unflatten(-1, (c.num_attention_heads, c.head_dim))
        q = self.rotary.apply(q, positions)
        o = sparse_attention.sparse_attention(q, sources, self.sink, scale=c.head_dim**-0.5)
        o = self.rotary.apply(o, positions, inverse=True)
        grouped = o.flatten(1).unflatten(1, (c.o_groups, -1))
        wo_a = self.wo_a.dense(o.dtype).unflatten(0, (c.o_groups, c.o_lora_rank))
        return self.wo_b.linear(torch.einsum("tgc,grc->tgr", grouped, wo_a).flatten(1))
