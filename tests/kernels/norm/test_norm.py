from __future__ import annotations

import pytest
import torch

from kernels.norm import rms_norm


def test_equals_the_formula_in_double() -> None:
    x, weight = torch.randn(7, 48), torch.randn(48)
    exact = x.double() / (x.double().square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight.double()
    torch.testing.assert_close(rms_norm(x, weight, 1e-5).double(), exact, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("channels", [48, 64, 576])
def test_a_row_does_not_depend_on_the_others_to_the_bit(channels: int) -> None:
    x, weight = torch.randn(600, channels), torch.randn(channels)
    whole = rms_norm(x, weight, 1e-5)
    for first, last in ((0, 1), (1, 2), (3, 8), (17, 60), (599, 600)):
        assert torch.equal(rms_norm(x[first:last].clone(), weight, 1e-5), whole[first:last])


def test_no_rows_and_zeros() -> None:
    assert rms_norm(torch.zeros(0, 8), torch.ones(8), 1e-5).shape == (0, 8)
    assert rms_norm(torch.zeros(2, 8), torch.ones(8), 1e-5).abs().sum() == 0
