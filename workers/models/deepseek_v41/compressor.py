"""Compressors: what KV-source layers write for everyone after them (V4.1 specification, section 5.2).

x is the attention input. Ratio 2, tokens 2j and 2j+1: `latent_j = rms( sum softmax(wgate x) * (wkv x) ; norm )`, the
softmax over the two tokens, channel by channel. Ratio 1: `latent_t = rms(wkv x_t; norm)`. A latent is stored after
`RoPE(latent, first position of its group)`; the index key derives from the latent *before* RoPE and rounding:
`ik_j = RoPE(rms(wk latent_j; k_norm), the same position)` (section 5.3).

A group exists once its last token has been processed. Of an open group, k and g of its first token are kept (float32).
"""

from dataclasses import dataclass

import torch

from kernels.quantization import Rows, encode_rows
from workers.models.deepseek_v41.config import DeepseekV41Config
from workers.models.deepseek_v41.formats import CacheFormats
from workers.models.deepseek_v41.norm import rms_norm, widen
from workers.models.deepseek_v41.rope import Rotary
from workers.models.deepseek_v41.weights import WeightShelf


@dataclass(frozen=True, slots=True)
class CompressedRows:
    """Rows of groups [first, first + count)."""

    first: int
    latents: Rows
    index_keys: Rows

    def __len__(self) -> int:
        return len(self.latents)


class Compressor:
    """The compressor and the index-key projection of one KV-source layer."""

    def __init__(self, config: DeepseekV41Config, shelf: WeightShelf, name: str, ratio: int, rotary: Rotary) -> None:
        self.config, self.ratio, self.rotary = config, ratio, rotary
        self.wkv = shelf.weight(f"{name}.compressor.wkv")
        self.wgate = shelf.weight(f"{name}.compressor.wgate") if ratio == 2 else None
        self.norm = shelf.vector(f"{name}.compressor.norm")
        self.wk = shelf.weight(f"{name}.indexer.wk")
        self.k_norm = shelf.vector(f"{name}.indexer.k_norm")

    def project(self, x: torch.Tensor) -> torch.Tensor:
        """k and, for ratio 2, g of every token: float32 [T, 1 or 2, head_dim]."""
        wide = widen(x)
        parts = [self.wkv.linear(wide)] + ([self.wgate.linear(wide)] if self.wgate is not None else [])
        return torch.stack(parts, dim=1)

    def close(self, projected: torch.Tensor, start: int, dtype: torch.dtype, formats: CacheFormats) -> CompressedRows:
        """The groups that tokens [start, start + T) complete; `start` is a group's first token.

        projected [T, parts, head_dim] from `project`; a last incomplete group is left out.
        """
        groups = len(projected) // self.ratio
        grouped = projected[: groups * self.ratio].unflatten(0, (groups, self.ratio))
        if self.ratio == 2:
            pooled = (torch.softmax(grouped[:, :, 1], dim=1) * grouped[:, :, 0]).sum(1)
        else:
            pooled = grouped[:, 0, 0]
        # Rounded to the model's dtype before its norm, as two of three engines do (section 12, question 1).
        latent = rms_norm(pooled.to(dtype), self.norm, self.config.rms_norm_eps)
        positions = start + self.ratio * torch.arange(groups, device=latent.device)
        index_key = rms_norm(self.wk.linear(latent), self.k_norm, self.config.rms_norm_eps)
        return CompressedRows(
            start // self.ratio,
            encode_rows(self.rotary.apply(latent, positions), formats.latent),
            encode_rows(self.rotary.apply(index_key, positions), formats.index_key),
        )
