"""Rotary position embedding on the last channels of a row (V4.1 specification, section 5.1).

Pairs are adjacent channels of the last `rope_dim`: `(e, o) -> (e cos - o sin, o cos + e sin)`, angle `p * inv_freq_i`.

Layers without latents: `inv_freq_i = base^(-2i/rope_dim)`. Layers with latents use their own base and YaRN, at every
length: with `dim(rot) = rope_dim ln(original / (2 pi rot)) / (2 ln base)`, `low = max(floor(dim(beta_fast)), 0)`,
`high = min(ceil(dim(beta_slow)), rope_dim - 1)`, `ramp_i = clip((i - low) / (high - low), 0, 1)`:
`inv_freq_i = f_i (1 - ramp_i) + f_i / factor * ramp_i`. There is no amplitude factor.
"""

import math

import torch

from workers.models.deepseek_v41.config import DeepseekV41Config, YarnScaling
from workers.models.deepseek_v41.norm import widen


def inverse_frequencies(rope_dim: int, base: float, scaling: YarnScaling | None) -> torch.Tensor:
    """float64 [rope_dim / 2]."""
    pair = torch.arange(rope_dim // 2, dtype=torch.float64)
    plain = base ** (-2 * pair / rope_dim)
    if scaling is None:
        return plain

    def dim(rotations: float) -> float:
        wavelengths = scaling.original_max_position_embeddings / (2 * math.pi * rotations)
        return rope_dim * math.log(wavelengths) / (2 * math.log(base))

    low = max(math.floor(dim(scaling.beta_fast)), 0)
    high = min(math.ceil(dim(scaling.beta_slow)), rope_dim - 1)
    ramp = ((pair - low) / max(high - low, 0.001)).clamp(0, 1)
    return plain * (1 - ramp) + plain / scaling.factor * ramp


class Rotary:
    """One kind of layer's rotation."""

    def __init__(self, rope_dim: int, base: float, scaling: YarnScaling | None) -> None:
        self.rope_dim = rope_dim
        self.inv_freq = inverse_frequencies(rope_dim, base, scaling)

    @classmethod
    def of_window_layers(cls, config: DeepseekV41Config) -> "Rotary":
        return cls(config.qk_rope_head_dim, config.rope_theta, None)

    @classmethod
    def of_latent_layers(cls, config: DeepseekV41Config) -> "Rotary":
        return cls(config.qk_rope_head_dim, config.compress_rope_theta, config.rope_scaling)

    def apply(self, x: torch.Tensor, positions: torch.Tensor, *, inverse: bool = False) -> torch.Tensor:
        """Rotate x [T, ..., c] at positions int64 [T]; `inverse` undoes it.

        Angles are float64: at position 10^6 a float32 angle is off by 0.03 rad, and one flipped cache code is enough to
        move later rows.
        """
        wide = widen(x)
        angles = positions.double()[:, None] * self.inv_freq.to(x.device)
        shape = (len(positions), *[1] * (x.dim() - 2), self.rope_dim // 2)
        cos, sin = (table.view(shape).to(wide.dtype) for table in (angles.cos(), angles.sin()))
        if inverse:
            sin = -sin
        plain, rotated = wide[..., : -self.rope_dim], wide[..., -self.rope_dim :]
        even, odd = rotated[..., 0::2], rotated[..., 1::2]
        turned = torch.stack((even * cos - odd * sin, odd * cos + even * sin), dim=-1).flatten(-2)
        return torch.cat((plain, turned), dim=-1).to(x.dtype)
