from __future__ import annotations

import pytest
import torch

from kernels.linear import LinearWeight, linear, linear_add_

SHAPES = [(960, 576), (576, 1536), (97, 48)]


@pytest.mark.parametrize(("outputs", "inputs"), SHAPES)
@pytest.mark.parametrize("weight_format", ["fp32", "bf16"])
@pytest.mark.parametrize("batch_invariant", [False, True])
def test_equals_the_product_in_double(outputs: int, inputs: int, weight_format: str, batch_invariant: bool) -> None:
    x, values = torch.randn(21, inputs), torch.randn(outputs, inputs)
    weight = LinearWeight.prepare(values, weight_format, batch_invariant=batch_invariant)
    exact = x.double() @ values.double().t()
    # bf16 keeps 8 bits of each factor and of the result; five standard deviations of their sum, and some more.
    tolerance = (1e-4, 1e-4) if weight_format == "fp32" else (inputs**0.5 * 2**-5, 2**-5)
    torch.testing.assert_close(linear(x, weight).double(), exact, atol=tolerance[0], rtol=tolerance[1])
    target = torch.randn(21, outputs)
    torch.testing.assert_close(
        linear_add_(target.clone(), x, weight).double(), target.double() + exact, atol=tolerance[0], rtol=tolerance[1]
    )


@pytest.mark.parametrize(("outputs", "inputs"), SHAPES)
@pytest.mark.parametrize("weight_format", ["fp32", "bf16"])
def test_invariant_rows_are_equal_to_the_bit_in_any_company(outputs: int, inputs: int, weight_format: str) -> None:
    x = torch.randn(70, inputs)
    weight = LinearWeight.prepare(torch.randn(outputs, inputs), weight_format, batch_invariant=True)
    whole = linear(x, weight)
    for first, last in ((0, 1), (5, 6), (3, 20), (11, 64), (69, 70)):
        assert torch.equal(linear(x[first:last], weight), whole[first:last])
    shuffled = torch.randperm(70)
    assert torch.equal(linear(x[shuffled], weight), whole[shuffled])


@pytest.mark.parametrize("batch_invariant", [False, True])
def test_no_rows(batch_invariant: bool) -> None:
    weight = LinearWeight.prepare(torch.randn(6, 8), "fp32", batch_invariant=batch_invariant)
    assert linear(torch.zeros(0, 8), weight).shape == (0, 6)


def test_an_unknown_format_is_an_error() -> None:
    with pytest.raises(KeyError):
        LinearWeight.prepare(torch.zeros(2, 2), "fp4", batch_invariant=False)
