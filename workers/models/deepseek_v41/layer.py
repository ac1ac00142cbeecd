"""A layer of the backbone, or a draft stage: two sublayers inside hyper-connections (V4.1 specification, section 2).

```
(pre_a, post_a, M_a) = mix(R; hc_attn)
y = attention( rms(sum_k pre[k] R[k]; attn_norm) )      # the PREVIOUS sublayer's pre
R[k] = post_a[k] y + sum_j M_a[j,k] R[j]
(pre_f, post_f, M_f) = mix(R; hc_ffn)
y = moe( rms(sum_k pre_a[k] R[k]; ffn_norm) )
R[k] = post_f[k] y + sum_j M_f[j,k] R[j];  pre = pre_f
```

Everything here works row by row and takes and gives plain tensors, so that it can run in tiles (`tiling`).
"""

import torch

from kernels import hyper_connections
from workers.models.deepseek_v41.attention import Attention
from workers.models.deepseek_v41.compressor import Compressor
from workers.models.deepseek_v41.config import DeepseekV41Config
from workers.models.deepseek_v41.engram import Engram
from workers.models.deepseek_v41.hyper_connections import HyperConnection
from workers.models.deepseek_v41.indexer import Indexer
from workers.models.deepseek_v41.moe import MixtureOfExperts
from workers.models.deepseek_v41.weights import WeightShelf


class Sublayers:
    """What a backbone layer and a draft stage have in common."""

    def __init__(
        self,
        config: DeepseekV41Config,
        shelf: WeightShelf,
        name: str,
        *,
        experts: int,
        top_k: int,
        image_bias: bool,
    ) -> None:
        self.config = config
        self.attn_norm, self.ffn_norm = shelf.vector(f"{name}.attn_norm"), shelf.vector(f"{name}.ffn_norm")
        self.hc_attn = HyperConnection(config, shelf, f"{name}.hc_attn")
        self.hc_ffn = HyperConnection(config, shelf, f"{name}.hc_ffn")
        self.attention = Attention(config, shelf, f"{name}.attn")
        self.moe = MixtureOfExperts(config, shelf, f"{name}.ffn", experts, top_k, image_bias)

    def enter(
        self, residual: torch.Tensor, pre: torch.Tensor, there: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(x [T, D], the attention's input; the window row [T, head_dim] that each row leaves)."""
        x = hyper_connections.collapse_norm(residual, pre, self.attn_norm, self.config.rms_norm_eps)
        return x, self.attention.window_row(x, there)

    def query(self, x: torch.Tensor, there: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(ql [T, q_lora_rank], queries [T, heads, head_dim])"""
        ql = self.attention.low_rank_queries(x)
        return ql, self.attention.queries(ql, there)

    def finish(
        self, residual: torch.Tensor, attended: torch.Tensor, back: torch.Tensor, is_image: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """From what the attention gave to the end of the layer: (residual, pre, experts int64 [T, k])."""
        mix_a = self.hc_attn.mix(residual)
        residual = hyper_connections.expand(residual, self.attention.output(attended, back), mix_a.post, mix_a.matrix)
        mix_f = self.hc_ffn.mix(residual)
        x = hyper_connections.collapse_norm(residual, mix_a.pre, self.ffn_norm, self.config.rms_norm_eps)
        y, experts = self.moe(x, is_image)
        return hyper_connections.expand(residual, y, mix_f.post, mix_f.matrix), mix_f.pre, experts


class Layer(Sublayers):
    """A backbone layer with the parts that its place gives it (section 1.1)."""

    def __init__(self, config: DeepseekV41Config, shelf: WeightShelf, layer: int) -> None:
        name = f"layers.{layer}"
        experts, top_k = config.n_routed_experts, config.num_experts_per_tok
        super().__init__(config, shelf, name, experts=experts, top_k=top_k, image_bias=True)
        self.engram: Engram | None = None
        self.compressor: Compressor | None = None
        self.indexer: Indexer | None = None
        if layer in config.engram_layer_ids:
            self.engram = Engram(config, shelf, f"{name}.engram")
        if layer in config.kv_source_layer_ids:
            self.compressor = Compressor(config, shelf, f"{name}.attn", config.ratio(layer))
        if layer in config.index_source_layer_ids:
            self.indexer = Indexer(config, shelf, f"{name}.attn.indexer", layer)
