from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.sampling import Purpose, SamplingParameters, candidates, log_probabilities, reference, sample, uniform


def parameters(
    rows: int, *, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0, seed: int = 0
) -> SamplingParameters:
    return SamplingParameters(
        temperature=torch.full((rows,), temperature),
        top_k=torch.full((rows,), top_k),
        top_p=torch.full((rows,), top_p, dtype=torch.float64),
        min_p=torch.full((rows,), min_p),
        uniforms=uniform(torch.full((rows,), seed), torch.arange(rows), Purpose.TOKEN),
    )


def frequencies(logits: torch.Tensor, draws: int = 40_000, **filters: float) -> torch.Tensor:
    tokens = sample(logits.expand(draws, -1).contiguous(), parameters(draws, **filters))  # type: ignore[arg-type]
    return torch.bincount(tokens, minlength=logits.shape[0]).double() / draws


GOLDEN = [0.6524484863740322, 0.9435642308648544, 0.9065873334251889, 0.5854352489135838]
LOGITS = torch.tensor([2.0, 0.5, 1.0, -3.0, 1.5, 0.0])


@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.5])
def test_frequencies_follow_the_softmax(temperature: float) -> None:
    expected = torch.softmax(LOGITS.double() / temperature, 0)
    seen = frequencies(LOGITS, temperature=temperature)
    # Four standard deviations of a count of 40,000 draws.
    assert ((seen - expected).abs() <= 4 * (expected * (1 - expected) / 40_000).sqrt() + 1e-9).all()


@pytest.mark.parametrize(
    ("filters", "kept"),
    [
        ({"top_k": 1}, [0]),
        ({"top_k": 3}, [0, 4, 2]),
        ({"top_p": 0.4}, [0]),
        ({"top_p": 0.6}, [0, 4]),
        ({"top_k": 3, "top_p": 0.5}, [0]),
        ({"min_p": 0.3}, [0, 4, 2]),
        ({"min_p": 1.0}, [0]),
        ({"top_p": 0.0}, [0]),
        ({"top_k": 100}, [0, 1, 2, 3, 4, 5]),
    ],
)
def test_filters_keep_what_they_say_and_renormalise(filters: dict[str, float], kept: list[int]) -> None:
    probabilities = torch.softmax(LOGITS.double(), 0)
    expected = torch.zeros_like(probabilities)
    expected[kept] = probabilities[kept] / probabilities[kept].sum()
    seen = frequencies(LOGITS, **filters)
    assert ((seen - expected).abs() <= 4 * (expected * (1 - expected) / 40_000).sqrt() + 1e-9).all()


def test_greedy_takes_the_most_likely_and_the_lowest_of_equals() -> None:
    logits = torch.tensor([[0.0, 3.0, 3.0, 1.0], [5.0, 5.0, 5.0, 5.0]])
    assert sample(logits, parameters(2, temperature=0.0)).tolist() == [1, 0]


def test_a_row_is_drawn_the_same_in_any_company() -> None:
    torch.manual_seed(0)
    logits = torch.randn(12, 500) * 3
    one = SamplingParameters(
        temperature=torch.tensor([0.0, 0.5, 1.0] * 4),
        top_k=torch.tensor([0, 5, 0, 400] * 3),
        top_p=torch.tensor([1.0, 0.9, 0.5] * 4, dtype=torch.float64),
        min_p=torch.tensor([0.0, 0.0, 0.1, 0.0] * 3),
        uniforms=uniform(torch.arange(12), torch.arange(12), Purpose.TOKEN),
    )
    together = sample(logits, one)
    for row in range(12):
        assert sample(logits[row : row + 1], one.rows(torch.tensor([row]))) == together[row]


@settings(max_examples=60, deadline=None)
@given(
    spread=st.sampled_from([0.0, 0.1, 1.0, 8.0]),
    top_k=st.sampled_from([0, 1, 5, 127, 128, 129, 300]),
    top_p=st.sampled_from([0.0, 0.3, 0.95, 0.999, 1.0]),
    min_p=st.sampled_from([0.0, 0.05, 0.9]),
    ties=st.booleans(),
    seed=st.integers(0, 2**31),
)
def test_candidates_draw_what_a_full_sort_draws(
    spread: float, top_k: int, top_p: float, min_p: float, ties: bool, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(8, 400, generator=generator) * spread
    if ties:
        logits = logits.round()
    filters = parameters(8, top_k=top_k, top_p=top_p, min_p=min_p, seed=seed)
    weights = reference.weights_of(logits, filters)
    expected = torch.where(
        filters.filtered,
        reference.sample_filtered(weights, filters),
        reference.sample_unfiltered(weights, filters.uniforms),
    )
    assert torch.equal(candidates.sample(logits, filters), expected)


def test_a_token_of_weight_zero_is_never_drawn() -> None:
    logits = torch.tensor([[float("-1e30"), 0.0, float("-1e30")]]).expand(2, -1).contiguous()
    edges = SamplingParameters(
        temperature=torch.ones(2),
        top_k=torch.zeros(2, dtype=torch.int64),
        top_p=torch.ones(2, dtype=torch.float64),
        min_p=torch.zeros(2),
        uniforms=torch.tensor([0.0, 1 - 2**-53], dtype=torch.float64),
    )
    assert sample(logits, edges).tolist() == [1, 1]


def test_uniforms_are_known_numbers() -> None:
    """Golden values: another process, machine or release must draw the same."""
    seeds = torch.tensor([0, 1, -1, 2**63 - 1])
    positions = torch.tensor([0, 1, 8191, 5])
    drawn = uniform(seeds, positions, Purpose.TOKEN)
    assert drawn.tolist() == GOLDEN
    assert not torch.equal(drawn, uniform(seeds, positions, Purpose.ACCEPT))


def test_uniforms_are_uniform_and_uncorrelated() -> None:
    count = 50_000
    drawn = uniform(torch.full((count,), 7), torch.arange(count), Purpose.TOKEN)
    assert 0 <= drawn.min() <= drawn.max() < 1
    counts = torch.histc(drawn.float(), 50, 0, 1)
    chi_square = ((counts - count / 50) ** 2 / (count / 50)).sum()
    assert chi_square < 96  # 49 degrees of freedom: 85.4 is the 0.1 % point
    centred = drawn - 0.5
    assert (centred[1:] * centred[:-1]).mean().abs() * 12 < 4 / count**0.5
    other = uniform(torch.full((count,), 8), torch.arange(count), Purpose.TOKEN) - 0.5
    assert (centred * other).mean().abs() * 12 < 4 / count**0.5


def test_log_probabilities_are_those_of_the_untouched_distribution() -> None:
    chosen, ids, best = log_probabilities(LOGITS[None], torch.tensor([2]), 2)
    expected = torch.log_softmax(LOGITS, 0)
    torch.testing.assert_close(chosen[0], expected[2])
    assert ids.tolist() == [[0, 4]]
    torch.testing.assert_close(best[0], expected[[0, 4]])


def test_no_rows() -> None:
    assert sample(torch.zeros(0, 5), parameters(0)).shape == (0,)
