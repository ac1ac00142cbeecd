"""Compressors: what KV-source layers write for everyone after them (V4.1 specification, section 5.2).

x is the attention input. Ratio 2, tokens 2j and 2j+1: `latent_j = rms( sum softmax(wgate x) * (wkv x) ; norm )`, the
softmax over the two tokens, channel by channel. Ratio 1: `latent_t = rms(wkv x_t; norm)`. A latent is stored after
`RoPE(latent, first position of its group)`; the index key derives from the latent *before* RoPE and rounding:
`ik_j = RoPE(rms(wk latent_j; k_norm), the same position)` (section 5.3).

A group exists once its last token has been processed. Of an open group, k and g of its first token are kept (float32).
"""

import torch

from workers.models.deepseek_v41.config import DeepseekV41Config
from workers.models.deepseek_v41.norm import rms_norm, widen
from workers.models.deepseek_v41.rope import norm_rotate, rotate
from workers.models.deepseek_v41.weights import WeightShelf


class Compressor:
    """The compressor and the index-key projection of one KV-source layer."""

    def __init__(self, config: DeepseekV41Config, shelf: WeightShelf, name: str, ratio: int) -> None:
        self.config, self.ratio = config, ratio
        self.wkv = shelf.matrix(f"{name}.compressor.wkv", exact=True)
        self.wgate = shelf.matrix(f"{name}.compressor.wgate", exact=True) if ratio == 2 else None
        self.norm = shelf.vector(f"{name}.compressor.norm")
        self.wk = shelf.matrix(f"{name}.indexer.wk")
        self.k_norm = shelf.vector(f"{name}.indexer.k_norm")

    def project(self, x: torch.Tensor) -> torch.Tensor:
        """k and, for ratio 2, g of every token: float32 [T, 1 or 2, head_dim]."""
        wide = widen(x)
        if self.wgate is None:
            return self.wkv.linear(wide)[:, None]
        return torch.stack((self.wkv.linear(wide), self.wgate.linear(wide)), dim=1)

    def close(
        self, members: torch.Tensor, there: torch.Tensor, dtype: torch.dtype
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(latents [G, head_dim], index keys [G, index_head_dim]) of groups, before they are packed.

        members [G, ratio, parts, head_dim] from `project`; `there` the turns of the groups' first positions.
        """
        pooled = members[:, 0, 0]
        if self.ratio == 2:
            pooled = (torch.softmax(members[:, :, 1], dim=1) * members[:, :, 0]).sum(1)
        # Rounded to the model's dtype before its norm, as two of three engines do (section 12, question 1).
        latent = rms_norm(pooled.to(dtype), self.norm, self.config.rms_norm_eps)
        index_key = norm_rotate(self.wk.linear(latent), self.k_norm, self.config.rms_norm_eps, there)
        return rotate(latent, there), index_key
