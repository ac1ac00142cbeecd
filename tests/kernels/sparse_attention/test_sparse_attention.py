"""Attention over chosen rows, and the order of choosing (V4.1 specification, sections 5.1 and 5.3)."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels import sparse_attention as sa
from kernels.quantization import RowFormat, Rows
from kernels.sparse_attention import reference


def test_against_softmax_with_a_sink_column(seeded: int, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(seeded)
    q, sink = torch.randn(4, 2, 8), torch.randn(2)
    pools = [Rows(RowFormat.FLOAT, torch.randn(n, 8)) for n in (6, 3)]
    index = [torch.tensor([[0, 1, -1], [5, 5, 2], [-1, -1, 4], [3, -1, -1]]), torch.tensor([[2], [-1], [0], [1]])]
    out = sa.sparse_attention(q, list(zip(pools, index, strict=True)), sink, scale=0.3)
    keys = torch.stack([pools[0].data[5], pools[0].data[5], pools[0].data[2]])
    logits = torch.cat((q[1] @ keys.T * 0.3, sink[:, None]), dim=1)
    torch.testing.assert_close(out[1], torch.softmax(logits, dim=1)[:, :-1] @ keys)
    monkeypatch.setattr(reference, "SLICE_ELEMENTS", 1)
    sliced = sa.sparse_attention(q, list(zip(pools, index, strict=True)), sink, scale=0.3)
    torch.testing.assert_close(sliced, out)


def test_no_visible_row_gives_zero_even_beside_garbage() -> None:
    pool = Rows(RowFormat.FLOAT, torch.full((2, 8), torch.nan))
    out = sa.sparse_attention(torch.randn(3, 2, 8), [(pool, torch.full((3, 2), -1))], torch.zeros(2), scale=1.0)
    assert torch.equal(out, torch.zeros(3, 2, 8))
    empty = Rows(RowFormat.FLOAT, torch.empty(0, 8))
    none = torch.empty((3, 0), dtype=torch.int64)
    assert torch.equal(sa.sparse_attention(torch.randn(3, 2, 8), [(empty, none)], torch.zeros(2), scale=1.0), out)


def test_scores_take_sequences_in_leading_axes(seeded: int) -> None:
    torch.manual_seed(seeded)
    q, w, keys = torch.randn(3, 1, 2, 8), torch.randn(3, 1, 2), torch.randn(3, 5, 8)
    visible = torch.tensor([[5], [2], [0]])
    together = sa.index_scores(q, w, keys, visible)
    for i in range(3):
        torch.testing.assert_close(together[i], sa.index_scores(q[i], w[i], keys[i], visible[i]))
    assert torch.isneginf(together[1, 0, 2:]).all()


def test_zero_scores_have_one_sign() -> None:
    scores = sa.index_scores(torch.ones(1, 1, 2), -torch.ones(1, 1), -torch.ones(3, 2), torch.tensor([3]))
    assert not scores.signbit().any()


@settings(deadline=None)
@given(st.lists(st.sampled_from([0.0, 1.0, 2.0, float("-inf")]), min_size=1, max_size=40), st.integers(1, 12))
def test_selection_prefers_low_positions_among_ties(values: list[float], count: int) -> None:
    got = sa.select_positions(torch.tensor([values]), count)[0].tolist()
    finite = [j for j, value in enumerate(values) if value > float("-inf")]
    wanted = sorted(sorted(finite, key=lambda j: (-values[j], j))[:count])
    assert got == wanted + [-1] * (min(count, len(values)) - len(wanted))


def test_candidate_blocks_force_the_newest_and_break_ties_low() -> None:
    scores = torch.zeros(1, 14)
    visible = torch.tensor([11])
    scores[0, 11:] = -torch.inf
    blocks = sa.candidate_blocks(scores, visible, block_size=4, count=2)
    assert blocks.tolist() == [[True, False, True, False]]
    restricted = sa.restrict_to_blocks(scores, blocks, block_size=4)
    assert restricted.isfinite().nonzero()[:, 1].tolist() == [0, 1, 2, 3, 8, 9, 10]
    none = sa.candidate_blocks(torch.full((1, 6), -torch.inf), torch.tensor([0]), block_size=4, count=2)
    assert not none.any()
