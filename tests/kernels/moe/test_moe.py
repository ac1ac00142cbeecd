"""Routing and experts (V4.1 specification, section 6)."""

import pytest
import torch
import torch.nn.functional as F

from kernels import moe
from kernels.moe import forms, reference
from kernels.quantization import Weight, WeightFormat, encode_weight


def test_ties_go_to_the_lowest_expert() -> None:
    experts, weights = moe.route(torch.zeros(2, 6), torch.zeros(6), top_k=3, scaling=1.5)
    assert experts.tolist() == [[0, 1, 2]] * 2
    torch.testing.assert_close(weights, torch.full((2, 3), 0.5))


def test_bias_chooses_but_does_not_weigh() -> None:
    logits = torch.tensor([[3.0, 1.0, 0.0]])
    experts, weights = moe.route(logits, torch.tensor([0.0, 0.0, 9.0]), top_k=2, scaling=1.0, temperature=2.0)
    assert experts.tolist() == [[2, 0]]
    scores = F.softplus(torch.tensor([0.0, 1.5])).sqrt()
    torch.testing.assert_close(weights[0], scores / scores.sum())


def test_bias_may_differ_by_row() -> None:
    bias = torch.tensor([[5.0, 0.0], [0.0, 5.0]])
    experts, _ = moe.route(torch.zeros(2, 2), bias, top_k=1, scaling=1.0)
    assert experts.tolist() == [[0], [1]]


def test_clamps() -> None:
    """The gate is cut above only, before silu; the other branch on both sides."""
    one = torch.ones(1, 1)
    big = moe.gated_ffn(one * 1e3, one, one, one, limit=10.0)
    torch.testing.assert_close(big, F.silu(torch.tensor([[10.0]])) * 10)
    negative = moe.gated_ffn(one, one * -20, one * -30, one, limit=10.0)
    torch.testing.assert_close(negative, F.silu(torch.tensor([[-20.0]])) * -10)


def test_experts_mix_as_stacked_or_packed(seeded: int) -> None:
    torch.manual_seed(seeded)
    x, experts = torch.randn(5, 32), torch.tensor([[0, 2], [2, 1], [1, 0], [0, 1], [2, 0]])
    weights = torch.rand(5, 2)
    packed = []
    for shape in ((64, 32), (64, 32), (32, 64)):
        pairs = [encode_weight(torch.randn(shape) / 6, WeightFormat.MXFP4) for _ in range(3)]
        stacked = (torch.stack([p[0] for p in pairs]), torch.stack([p[1] for p in pairs]))
        packed.append(Weight(WeightFormat.MXFP4, *stacked))
    dense = [Weight.of(w.dense(torch.float32)) for w in packed]
    got = moe.mix_experts(x, experts, weights, *packed, limit=10.0)
    torch.testing.assert_close(got, moe.mix_experts(x, experts, weights, *dense, limit=10.0))
    w1, w3, w2 = (w.data for w in dense)
    row = sum(weights[1, i] * moe.gated_ffn(x[1:2], w1[e], w3[e], w2[e], limit=10.0) for i, e in enumerate((2, 1)))
    torch.testing.assert_close(got[1:2], row)
    assert moe.mix_experts(x[:0], experts[:0], weights[:0], *packed, limit=10.0).shape == (0, 32)


@pytest.mark.parametrize("rows", [0, 1, 7, 40])
def test_forms_agree(seeded: int, rows: int) -> None:
    """Each form gives the sum whatever the sizes; the dispatcher may take any."""
    torch.manual_seed(seeded)
    x, weights = torch.randn(rows, 16), torch.rand(rows, 3)
    experts = torch.randint(0, 6, (rows, 3))
    w1, w3, w2 = torch.randn(6, 8, 16) / 4, torch.randn(6, 8, 16) / 4, torch.randn(6, 16, 8) / 3
    packed = [Weight.of(w) for w in (w1, w3, w2)]
    wanted = reference.mix_experts(x, experts, weights, *packed, 10.0)
    room = forms.busiest(experts, 6)
    for got in (
        forms.mix_by_row(x, experts, weights, w1, w3, w2, 10.0),
        forms.mix_padded(x, experts, weights, w1, w3, w2, 10.0, room),
        forms.mix_sorted(x, experts, weights, w1, w3, w2, 10.0),
        moe.mix_experts(x, experts, weights, *packed, limit=10.0),
    ):
        torch.testing.assert_close(got, wanted)


@pytest.mark.parametrize(("weight_format", "tolerance"), [("fp32", 1e-5), ("bf16", 0.05), ("w8", 0.05), ("w8a8", 0.2)])
def test_packed_experts(seeded: int, weight_format: str, tolerance: float) -> None:
    torch.manual_seed(seeded)
    x, weights, experts = torch.randn(21, 48), torch.rand(21, 3), torch.randint(0, 6, (21, 3))
    w1, w3, w2 = torch.randn(6, 20, 48) / 7, torch.randn(6, 20, 48) / 7, torch.randn(6, 48, 20) / 4
    packed = moe.pack(w1, w3, w2, weight_format)
    if packed is None:
        pytest.skip("no C++ compiler here")
    wanted = moe.mix_experts(x, experts, weights, Weight.of(w1), Weight.of(w3), Weight.of(w2), limit=1.0)
    got = moe.mix_packed(x, experts, weights, packed, limit=1.0)
    assert (got - wanted).abs().max() < tolerance * max(1, wanted.std())
    few = torch.tensor([20, 3])
    assert torch.equal(moe.mix_packed(x[few], experts[few], weights[few], packed, limit=1.0), got[few])
    assert moe.mix_packed(x[:0], experts[:0], weights[:0], packed, limit=1.0).shape == (0, 48)
