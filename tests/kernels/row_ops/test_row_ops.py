"""Norm and rotation in one call, against their definitions in float64."""

import pytest
import torch

from kernels import row_ops


def turned(x: torch.Tensor, turns: torch.Tensor) -> torch.Tensor:
    pairs = x.double().clone()
    tail = torch.view_as_complex(pairs[..., -2 * turns.shape[1] :].unflatten(-1, (-1, 2)))
    tail *= turns.to(torch.complex128).view(len(turns), *[1] * (x.dim() - 2), -1)
    return pairs


def test_against_the_definition(seeded: int) -> None:
    torch.manual_seed(seeded)
    x, weight = torch.randn(7, 64), torch.randn(64)
    if not row_ops.takes(x):
        pytest.skip("no C++ compiler here")
    turns = torch.polar(torch.ones(7, 8), torch.randn(7, 8))
    x[3] = 0
    normed = x.double() * (x.double().square().mean(-1, keepdim=True) + 1e-20).rsqrt() * weight
    got = row_ops.norm_rotate(x, weight, 1e-20, turns)
    torch.testing.assert_close(got.double(), turned(normed, turns), atol=1e-5, rtol=1e-5)
    plain = row_ops.norm_rotate(x[:, None], weight, 1e-20)
    torch.testing.assert_close(plain.double(), normed[:, None], atol=1e-5, rtol=1e-5)
    assert torch.equal(row_ops.norm_rotate(x[5:6], weight, 1e-20, turns[5:6]), got[5:6])
    heads = torch.randn(7, 3, 64)
    wanted = turned(heads, turns)
    torch.testing.assert_close(row_ops.rotate_(heads, turns).double(), wanted, atol=1e-5, rtol=1e-5)
    assert row_ops.rotate_(torch.empty(0, 3, 64), turns[:0]).shape == (0, 3, 64)
    with pytest.raises(ValueError, match="do not fit"):
        row_ops.rotate_(heads, turns[:5])
