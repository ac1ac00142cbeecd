"""A counter-based generator: uniform numbers as a hash of (seed, position, purpose), without any state.

Each input goes through the finaliser of SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators,
OOPSLA 2014), keyed by what came before it. Integer arithmetic modulo 2^64, the same on every machine.
"""

from __future__ import annotations

import enum

import torch

_GOLDEN = -7046029254386353131  # 0x9e3779b97f4a7c15 as int64: torch multiplies int64 modulo 2^64
_MIX_1 = -4658895280553007687  # 0xbf58476d1ce4e5b9
_MIX_2 = -7723592293110705685  # 0x94d049bb133111eb


class Purpose(enum.IntEnum):
    """What a number is drawn for: two purposes at one position must not share numbers."""

    TOKEN = 1
    DRAFT = 2
    ACCEPT = 3
    RESIDUAL = 4


def uniform(seeds: torch.Tensor, positions: torch.Tensor, purpose: Purpose) -> torch.Tensor:
    """float64 in [0, 1) with 53 random bits, for int64 `seeds` and `positions` of one shape."""
    key = _mix(seeds + _GOLDEN * torch.tensor(int(purpose)))
    bits = _mix(key + (positions + 1) * _GOLDEN)
    return _shift(bits, 11).double() * 2.0**-53


def _mix(x: torch.Tensor) -> torch.Tensor:
    x = (x ^ _shift(x, 30)) * _MIX_1
    x = (x ^ _shift(x, 27)) * _MIX_2
    return x ^ _shift(x, 31)


def _shift(x: torch.Tensor, bits: int) -> torch.Tensor:
    """Logical right shift of int64."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)
