from __future__ import annotations

import torch

from kernels.rope import rotary_angles, rotate_

FREQUENCIES = 10000.0 ** -(torch.arange(0, 16, 2).float() / 16)


def test_equals_a_rotation_of_each_pair() -> None:
    x = torch.randn(5, 3, 16)
    positions = torch.tensor([0, 1, 7, 100, 4000])
    theta = positions[:, None, None].float() * FREQUENCIES
    even, odd = x[..., 0::2], x[..., 1::2]
    expected = torch.stack((even * theta.cos() - odd * theta.sin(), even * theta.sin() + odd * theta.cos()), -1)
    torch.testing.assert_close(rotate_(x.clone(), rotary_angles(positions, FREQUENCIES)), expected.flatten(-2))


def test_works_in_place_on_a_strided_part() -> None:
    whole = torch.randn(4, 5, 16)
    kept = whole[:, 3:].clone()
    part = whole[:, :3].clone()
    angles = rotary_angles(torch.arange(4), FREQUENCIES)
    rotate_(whole[:, :3], angles)
    assert torch.equal(whole[:, 3:], kept)
    assert torch.equal(whole[:, :3], rotate_(part, angles))


def test_dot_products_depend_on_the_distance_only() -> None:
    q, k = torch.randn(1, 1, 16), torch.randn(1, 1, 16)

    def score(a: int, b: int) -> torch.Tensor:
        left = rotate_(q.clone(), rotary_angles(torch.tensor([a]), FREQUENCIES))
        right = rotate_(k.clone(), rotary_angles(torch.tensor([b]), FREQUENCIES))
        return (left * right).sum()

    torch.testing.assert_close(score(9, 4), score(1009, 1004), atol=1e-3, rtol=1e-3)


def test_no_rows() -> None:
    assert rotate_(torch.zeros(0, 2, 16), rotary_angles(torch.zeros(0, dtype=torch.int64), FREQUENCIES)).shape[0] == 0
