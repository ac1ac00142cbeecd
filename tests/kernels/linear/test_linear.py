from __future__ import annotations

import pytest
import torch

from kernels.linear import (
    FORMATS,
    LinearWeight,
    gated_linear_add_,
    linear,
    linear_add_,
    norm_linear,
    quantize_rows,
)
from kernels.norm import rms_norm

SHAPES = [(960, 576), (576, 1536), (97, 47), (5, 5000)]
pytestmark = pytest.mark.usefixtures("path")


def stored(values: torch.Tensor, weight_format: str) -> torch.Tensor:
    """What a format keeps of a weight, in double."""
    if weight_format == "fp32":
        return values.double()
    if weight_format == "bf16":
        return values.bfloat16().double()
    whole, scales = quantize_rows(values, 127)
    return whole.double() * scales[:, None].double()


def tolerance(x: torch.Tensor, weight: torch.Tensor, weight_format: str) -> float:
    """Six standard deviations of the sum of what rounding the rows (and, in bf16, the result) may do."""
    spread = float(weight.norm(dim=1).max())
    if weight_format == "fp32":
        return 1e-6 * spread * float(x.norm(dim=1).max())
    step = {"bf16": 2.0**-8, "w8": 1 / 8191, "w8a8": 1 / 127}[weight_format]
    result = 2.0**-8 * float((x.double() @ weight.t()).abs().max()) if weight_format == "bf16" else 0.0
    return 6 * 0.29 * step * float(x.abs().max()) * spread + result + 1e-4


@pytest.mark.parametrize(("outputs", "inputs"), SHAPES)
@pytest.mark.parametrize("weight_format", FORMATS)
@pytest.mark.parametrize("batch_invariant", [False, True])
def test_equals_the_product_in_double(outputs: int, inputs: int, weight_format: str, batch_invariant: bool) -> None:
    torch.manual_seed(0)
    x, values = torch.randn(21, inputs), torch.randn(outputs, inputs)
    weight = LinearWeight.prepare(values, weight_format, batch_invariant=batch_invariant)
    kept = stored(values, weight_format)
    exact, atol = x.double() @ kept.t(), tolerance(x, kept, weight_format)
    torch.testing.assert_close(linear(x, weight).double(), exact, atol=atol, rtol=0)
    target = torch.randn(21, outputs)
    torch.testing.assert_close(
        linear_add_(target.clone(), x, weight).double(), target.double() + exact, atol=atol, rtol=0
    )


@pytest.mark.parametrize("weight_format", FORMATS)
def test_what_stands_before_it(weight_format: str) -> None:
    torch.manual_seed(0)
    values, norm = torch.randn(70, 45), torch.rand(45) + 0.5
    weight = LinearWeight.prepare(values, weight_format, batch_invariant=False)
    x = torch.randn(9, 45) * 3
    normed = rms_norm(x, norm, 1e-5)
    atol = tolerance(normed, stored(values, weight_format), weight_format)
    torch.testing.assert_close(norm_linear(x, norm, 1e-5, weight), linear(normed, weight), atol=atol, rtol=0)
    gate, up, target = torch.randn(9, 45), torch.randn(9, 45), torch.randn(9, 70)
    gated = torch.nn.functional.silu(gate) * up
    actual = gated_linear_add_(target.clone(), torch.cat((gate, up), 1), weight)
    atol = tolerance(gated, stored(values, weight_format), weight_format)
    torch.testing.assert_close(actual, target + linear(gated, weight), atol=atol, rtol=0)


@pytest.mark.parametrize("weight_format", FORMATS)
def test_an_outlier_among_the_neighbours_changes_nothing_but_rounding(weight_format: str) -> None:
    torch.manual_seed(0)
    weight = LinearWeight.prepare(torch.randn(96, 64), weight_format, batch_invariant=False)
    x = torch.randn(33, 64)
    calm = linear(x, weight)
    x[7] *= 1e4
    crowded = linear(x, weight)
    others = [row for row in range(33) if row != 7]
    torch.testing.assert_close(crowded[others], calm[others], atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize(("outputs", "inputs"), SHAPES)
@pytest.mark.parametrize("weight_format", FORMATS)
def test_invariant_rows_are_equal_to_the_bit_in_any_company(outputs: int, inputs: int, weight_format: str) -> None:
    x = torch.randn(70, inputs)
    weight = LinearWeight.prepare(torch.randn(outputs, inputs), weight_format, batch_invariant=True)
    whole = linear(x, weight)
    for first, last in ((0, 1), (5, 6), (3, 20), (11, 64), (69, 70)):
        assert torch.equal(linear(x[first:last], weight), whole[first:last])
    shuffled = torch.randperm(70)
    assert torch.equal(linear(x[shuffled], weight), whole[shuffled])


@pytest.mark.parametrize("weight_format", FORMATS)
def test_threads_and_strides_change_nothing(weight_format: str) -> None:
    weight = LinearWeight.prepare(torch.randn(200, 64), weight_format, batch_invariant=True)
    wide = torch.randn(40, 128)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = linear(wide[:, :64], weight)
        torch.set_num_threads(2)
        assert torch.equal(linear(wide[:, :64].contiguous(), weight), alone)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("weight_format", FORMATS)
def test_rows_of_a_tied_table(weight_format: str) -> None:
    values = torch.randn(50, 33)
    weight = LinearWeight.prepare(values, weight_format, batch_invariant=False)
    index = torch.tensor([0, 49, 17, 17])
    torch.testing.assert_close(weight.rows(index), stored(values, weight_format)[index].float(), atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("weight_format", FORMATS)
@pytest.mark.parametrize("spoilt", [float("nan"), float("inf"), -float("inf")])
def test_a_row_that_is_not_finite_says_so_and_spoils_no_other(weight_format: str, spoilt: float) -> None:
    weight = LinearWeight.prepare(torch.randn(40, 64), weight_format, batch_invariant=False)
    x = torch.randn(3, 64)
    x[1, 5] = spoilt
    result = linear(x, weight)
    assert not result[1].isfinite().any()
    assert result[[0, 2]].isfinite().all()


@pytest.mark.parametrize("batch_invariant", [False, True])
@pytest.mark.parametrize("weight_format", FORMATS)
def test_no_rows_and_zeros(batch_invariant: bool, weight_format: str) -> None:
    weight = LinearWeight.prepare(torch.zeros(6, 8), weight_format, batch_invariant=batch_invariant)
    assert linear(torch.zeros(0, 8), weight).shape == (0, 6)
    assert linear(torch.zeros(2, 8), weight).abs().sum() == 0


def test_what_does_not_fit_is_an_error() -> None:
    with pytest.raises(KeyError):
        LinearWeight.prepare(torch.zeros(2, 2), "fp4", batch_invariant=False)
    weight = LinearWeight.prepare(torch.zeros(2, 2), "fp32", batch_invariant=False)
    with pytest.raises((ValueError, RuntimeError)):
        linear(torch.zeros(1, 3), weight)
