from __future__ import annotations

import pytest
import torch

from tests.workers.engine.factories import identity, make_request, some_tokens
from workers.engine.sampler import sample_rows
from workers.engine.sequence import Phase, Sequence
from workers.identity import root_hash

VOCABULARY = 300


def make_sequence(**sampling: object) -> Sequence:
    request = make_request(some_tokens(5), temperature=1.0, **sampling)
    return Sequence(
        request=request,
        phase=Phase.PREFILL,
        hold=False,
        root=root_hash(identity(), request.salt),
        block_tokens=4,
        output_limit=4,
        tokens=list(request.tokens),
    )


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("filters", [{}, {"top_k": 5}, {"top_p": 0.9}, {"min_p": 0.1}, {"logprobs": 3}])
def test_a_row_that_is_not_finite_has_no_token_and_leaves_the_others_alone(
    bad: float, filters: dict[str, object]
) -> None:
    logits = torch.randn(3, VOCABULARY)
    sequences = [make_sequence(**filters) for _ in range(3)]
    expected = sample_rows(logits, sequences)
    broken = logits.clone()
    broken[1, 7] = bad
    first, second, third = sample_rows(broken, sequences)
    assert second.token is None
    assert second.logprobs is None
    assert [first, third] == [expected[0], expected[2]]


@pytest.mark.parametrize("wild", [{"top_k": 2**63}, {"top_k": -(2**40)}, {"seed": -(2**70)}, {"logprobs": -1}])
def test_numbers_out_of_range_draw_a_token_like_any_other(wild: dict[str, object]) -> None:
    (sampled,) = sample_rows(torch.randn(1, VOCABULARY), [make_sequence(**wild)])
    assert sampled.token is not None
    assert 0 <= sampled.token < VOCABULARY
