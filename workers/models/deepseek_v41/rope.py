"""Rotary position embedding on the last channels of a row (V4.1 specification, section 5.1).

Pairs are adjacent channels of the last `rope_dim`: `(e, o) -> (e cos - o sin, o cos + e sin)`, angle `p * inv_freq_i`:
a product of complex numbers.

Layers without latents: `inv_freq_i = base^(-2i/rope_dim)`. Layers with latents use their own base and YaRN, at every
length: with `dim(rot) = rope_dim ln(original / (2 pi rot)) / (2 ln base)`, `low = max(floor(dim(beta_fast)), 0)`,
`high = min(ceil(dim(beta_slow)), rope_dim - 1)`, `ramp_i = clip((i - low) / (high - low), 0, 1)`:
`inv_freq_i = f_i (1 - ramp_i) + f_i / factor * ramp_i`. There is no amplitude factor.
"""

import math
from dataclasses import dataclass

import torch

from kernels import row_ops
from workers.models.deepseek_v41.config import DeepseekV41Config, YarnScaling
from workers.models.deepseek_v41.norm import rms_norm, widen


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


FIRST_POSITIONS = 1024


@dataclass(frozen=True, slots=True)
class Turns:
    """Rotations of T rows, complex [T, rope_dim / 2]: `there` rotates, `back` undoes it."""

    there: torch.Tensor
    back: torch.Tensor

    def keep(self, rows: torch.Tensor) -> "Turns":
        return Turns(self.there[rows], self.back[rows])


class Rotary:
    """One kind of layer's rotation: the turns of some positions are looked up once and serve every such layer."""

    def __init__(self, rope_dim: int, base: float, scaling: YarnScaling | None) -> None:
        self.rope_dim = rope_dim
        self.inv_freq = inverse_frequencies(rope_dim, base, scaling)
        self._tables: dict[torch.dtype, torch.Tensor] = {}

    @classmethod
    def of_window_layers(cls, config: DeepseekV41Config) -> "Rotary":
        return cls(config.qk_rope_head_dim, config.rope_theta, None)

    @classmethod
    def of_latent_layers(cls, config: DeepseekV41Config) -> "Rotary":
        return cls(config.qk_rope_head_dim, config.compress_rope_theta, config.rope_scaling)

    def turns(self, positions: torch.Tensor, dtype: torch.dtype) -> Turns:
        """The rotations of positions int64 [T], their parts in at least float32."""
        last = int(positions.max()) if len(positions) else 0
        table = self._table(last, torch.promote_types(dtype, torch.float32))
        there = table[positions]
        return Turns(there, there.conj_physical())

    def _table(self, last: int, dtype: torch.dtype) -> torch.Tensor:
        """`exp(i p f)` of all positions up to `last` at least; it doubles when it grows.

        Angles are float64: at position 10^6 a float32 angle is off by 0.03 rad, and one flipped cache code is enough to
        move later rows.
        """
        table = self._tables.get(dtype)
        if table is None or len(table) <= last:
            count = max(FIRST_POSITIONS, 1 << last.bit_length())
            angles = torch.arange(count, dtype=torch.float64)[:, None] * self.inv_freq
            table = self._tables[dtype] = torch.complex(angles.cos().to(dtype), angles.sin().to(dtype))
        return table


def rotate(x: torch.Tensor, turns: torch.Tensor) -> torch.Tensor:
    """Rotate x [T, ..., c], contiguous, by turns [T, rope_dim / 2]; their conjugates undo it.

    May work in place: x is the caller's to give away.
    """
    if row_ops.takes(x):
        return row_ops.rotate_(x, turns)
    wide = widen(x)
    pairs = torch.view_as_complex(wide[..., -2 * turns.shape[-1] :].unflatten(-1, (-1, 2)))
    pairs.mul_(turns if x.dim() == 2 else turns.view(len(turns), *[1] * (x.dim() - 2), -1))
    return wide.to(x.dtype)


def norm_rotate(x: torch.Tensor, weight: torch.Tensor, eps: float, turns: torch.Tensor) -> torch.Tensor:
    """`rotate(rms_norm(x))` of x [T, c]."""
    if row_ops.takes(x):
        return row_ops.norm_rotate(x, weight, eps, turns)
    return rotate(rms_norm(x, weight, eps), turns)
