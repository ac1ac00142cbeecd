"""Rotary positions in plain torch: a complex multiplication."""

import torch


def rotary_angles(positions: torch.Tensor, inverse_frequencies: torch.Tensor) -> torch.Tensor:
    angles = positions[:, None].float() * inverse_frequencies
    return torch.complex(angles.cos(), angles.sin())


def rotate_(x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)))
    pairs.mul_(angles[:, None])
    return x
