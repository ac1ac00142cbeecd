"""A layer of the backbone, or a draft stage: two sublayers inside hyper-connections (V4.1 specification, section 2).

```
(pre_a, post_a, M_a) = mix(R; hc_attn)
y = attention( rms(sum_k pre[k] R[k]; attn_norm) )      # the PREVIOUS sublayer's pre
R[k] = post_a[k] y + sum_j M_a[j,k] R[j]
(pre_f, post_f, M_f) = mix(R; hc_ffn)
y = moe( rms(sum_k pre_a[k] R[k]; ffn_norm) )
R[k] = post_f[k] y + sum_j M_f[j,k] R[j];  pre = pre_f
```
"""

from dataclasses import dataclass

import torch

from kernels import hyper_connections
from workers.models.deepseek_v41.attention import Attention
from workers.models.deepseek_v41.compressor import Compressor
from workers.models.deepseek_v41.config import DeepseekV41Config
from workers.models.deepseek_v41.engram import Engram
from workers.models.deepseek_v41.hyper_connections import HyperConnection, Mix
from workers.models.deepseek_v41.indexer import Indexer
from workers.models.deepseek_v41.moe import MixtureOfExperts
from workers.models.deepseek_v41.norm import rms_norm
from workers.models.deepseek_v41.rope import Rotary
from workers.models.deepseek_v41.weights import WeightShelf


@dataclass(frozen=True, slots=True)
class Streams:
    """The residual streams [T, n, D] and the pre [T, n] that the next sublayer takes."""

    residual: torch.Tensor
    pre: torch.Tensor

    def collapse(self) -> torch.Tensor:
        return hyper_connections.collapse(self.residual, self.pre)

    def keep(self, rows: torch.Tensor) -> "Streams":
        return Streams(self.residual[rows], self.pre[rows])


class Sublayers:
    """What a backbone layer and a draft stage have in common."""

    def __init__(
        self,
        config: DeepseekV41Config,
        shelf: WeightShelf,
        name: str,
        rotary: Rotary,
        *,
        experts: int,
        top_k: int,
        image_bias: bool,
    ) -> None:
        self.config = config
        self.attn_norm, self.ffn_norm = shelf.vector(f"{name}.attn_norm"), shelf.vector(f"{name}.ffn_norm")
        self.hc_attn = HyperConnection(config, shelf, f"{name}.hc_attn")
        self.hc_ffn = HyperConnection(config, shelf, f"{name}.hc_ffn")
        self.attention = Attention(config, shelf, f"{name}.attn", rotary)
        self.moe = MixtureOfExperts(config, shelf, f"{name}.ffn", experts, top_k, image_bias)

    def attention_input(self, streams: Streams) -> torch.Tensor:
        return rms_norm(streams.collapse(), self.attn_norm, self.config.rms_norm_eps)

    def finish(
        self, streams: Streams, mix: Mix, attended: torch.Tensor, is_image: torch.Tensor
    ) -> tuple[Streams, torch.Tensor]:
        """From the attention's output to the end of the layer: (streams, rows per expert [experts])."""
        residual = hyper_connections.expand(streams.residual, attended, mix.post, mix.matrix)
        mix_ffn = self.hc_ffn.mix(residual)
        x = rms_norm(hyper_connections.collapse(residual, mix.pre), self.ffn_norm, self.config.rms_norm_eps)
        out = self.moe(x, is_image)
        residual = hyper_connections.expand(residual, out.rows, mix_ffn.post, mix_ffn.matrix)
        return Streams(residual, mix_ffn.pre), out.counts


class Layer(Sublayers):
    """A backbone layer with the parts that its place gives it (section 1.1)."""

    def __init__(self, config: DeepseekV41Config, shelf: WeightShelf, layer: int, rotary: Rotary) -> None:
        name = f"layers.{layer}"
        experts, top_k = config.n_routed_experts, config.num_experts_per_tok
        super().__init__(config, shelf, name, rotary, experts=experts, top_k=top_k, image_bias=True)
        self.engram: Engram | None = None
        self.compressor: Compressor | None = None
        self.indexer: Indexer | None = None
        if layer in config.engram_layer_ids:
            self.engram = Engram(config, shelf, f"{name}.engram")
        if layer in config.kv_source_layer_ids:
            self.compressor = Compressor(config, shelf, f"{name}.attn", config.ratio(layer), rotary)
        if layer in config.index_source_layer_ids:
            self.indexer = Indexer(config, shelf, f"{name}.attn.indexer", layer, rotary)
