from __future__ import annotations

import pytest
import torch

from kernels.sampling.masks import add_bias, apply_bitmask, penalise, words


@pytest.mark.parametrize("vocabulary", [1, 31, 32, 33, 300])
@pytest.mark.parametrize("rows", [0, 1, 3])
def test_a_bitmask_forbids_what_it_does_not_name(rows: int, vocabulary: int) -> None:
    allowed = torch.rand(rows, vocabulary) < 0.5
    padded = torch.zeros(rows, words(vocabulary) * 32, dtype=torch.bool)
    padded[:, :vocabulary] = allowed
    weights = 1 << torch.arange(32, dtype=torch.int64)
    mask = (padded.view(rows, words(vocabulary), 32).long() * weights).sum(-1).to(torch.int32)
    logits = torch.randn(rows, vocabulary)
    expected = torch.where(allowed, logits, -torch.inf)
    apply_bitmask(logits, mask)
    torch.testing.assert_close(logits, expected, rtol=0, atol=0)


def test_biases_and_penalties() -> None:
    row = torch.zeros(6)
    add_bias(row, {2: 1.5, 99: 3.0})
    penalise(row, torch.tensor([4, 4, 0]), presence=1.0, frequency=0.5)
    assert row.tolist() == [-1.5, 0.0, 1.5, 0.0, -2.0, 0.0]
    penalise(row, torch.tensor([], dtype=torch.int64), presence=1.0, frequency=0.5)
    assert row.tolist() == [-1.5, 0.0, 1.5, 0.0, -2.0, 0.0]
