"""The C++ kernels against the definition; a row never depends on its company."""

import pytest
import torch

from kernels import hyper_connections as hc
from kernels.hyper_connections import native, reference


@pytest.mark.parametrize("rows", [0, 1, 13, 40])
def test_native_is_the_reference(seeded: int, rows: int) -> None:
    torch.manual_seed(seeded)
    residual, fn, scale, base = torch.randn(rows, 4, 72), torch.randn(24, 288) / 9, torch.randn(3), torch.randn(24)
    if not native.takes(residual, fn, scale, base):
        pytest.skip("no C++ compiler here")
    got = hc.mix(residual, fn, scale, base, rms_eps=1e-20, hc_eps=1e-6, iterations=20)
    wanted = reference.mix(residual, fn, scale, base, 1e-20, 1e-6, 20)
    for mine, theirs in zip(got, wanted, strict=True):
        torch.testing.assert_close(mine, theirs, atol=2e-6, rtol=0)
    pre, post, matrix = wanted
    output, norm = torch.randn(rows, 72), torch.randn(72)
    torch.testing.assert_close(
        hc.expand(residual, output, post, matrix), reference.expand(residual, output, post, matrix)
    )
    torch.testing.assert_close(hc.collapse(residual, pre), reference.collapse(residual, pre, None, 0.0))
    torch.testing.assert_close(
        hc.collapse_norm(residual, pre, norm, 1e-20),
        reference.collapse(residual, pre, norm, 1e-20),
        atol=1e-5,
        rtol=1e-5,
    )
    for first in range(0, rows, 7):
        alone = hc.mix(residual[first : first + 3], fn, scale, base, rms_eps=1e-20, hc_eps=1e-6, iterations=20)
        assert all(torch.equal(few, all_rows[first : first + 3]) for few, all_rows in zip(alone, got, strict=True))
