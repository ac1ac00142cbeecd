"""Attention over chosen rows, and the order of choosing (V4.1 specification, sections 5.1 and 5.3)."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels import sparse_attention as sa
from kernels.sparse_attention import native, reference, selection


def sources(index: list[torch.Tensor], pools: list[torch.Tensor]) -> tuple[list[sa.Source], torch.Tensor]:
    """Sources and the bias that hides numbers of -1."""
    hidden = torch.cat(index, dim=1) < 0
    bias = torch.zeros(hidden.shape).masked_fill(hidden, -torch.inf)
    return [sa.Source(pool, i.clamp(min=0)) for pool, i in zip(pools, index, strict=True)], bias


def test_against_softmax_with_a_sink_column(seeded: int, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(seeded)
    q, sink = torch.randn(4, 2, 8), torch.randn(2)
    pools = [torch.randn(n, 8) for n in (6, 3)]
    index = [torch.tensor([[0, 1, -1], [5, 5, 2], [-1, -1, 4], [3, -1, -1]]), torch.tensor([[2], [-1], [0], [1]])]
    named, bias = sources(index, pools)
    out = sa.sparse_attention(q, named, bias, sink, scale=0.3)
    keys = torch.stack([pools[0][5], pools[0][5], pools[0][2]])
    logits = torch.cat((q[1] @ keys.T * 0.3, sink[:, None]), dim=1)
    torch.testing.assert_close(out[1], torch.softmax(logits, dim=1)[:, :-1] @ keys)
    gathered = [sa.Source(source.keys(0, 4)) for source in named]
    torch.testing.assert_close(sa.sparse_attention(q, gathered, bias, sink, scale=0.3), out)
    monkeypatch.setattr(reference, "SLICE_ELEMENTS", 1)
    torch.testing.assert_close(sa.sparse_attention(q, named, bias, sink, scale=0.3), out)


@pytest.mark.parametrize("heads", [1, 4, 6])
def test_native_attention(seeded: int, heads: int) -> None:
    """The C++ kernel against the definition; what is hidden is not read, and a query does not depend on others."""
    torch.manual_seed(seeded)
    q, sink = torch.randn(9, heads, 32), torch.randn(heads)
    index = [torch.randint(-1, 20, (9, 7)), torch.randint(-1, 5, (9, 12))]
    named, bias = sources(index, [torch.randn(20, 32), torch.randn(5, 32)])
    bias[4] = -torch.inf
    if not native.takes(q, named):
        pytest.skip("no C++ compiler here")
    wanted = reference.sparse_attention(q, named, bias, sink, 0.2)
    got = sa.sparse_attention(q, named, bias, sink, scale=0.2)
    torch.testing.assert_close(got, wanted, atol=1e-5, rtol=1e-5)
    assert not got[4].any()
    few = torch.tensor([7, 2])
    alone = sa.sparse_attention(q[few], [source.of(few) for source in named], bias[few], sink, scale=0.2)
    assert torch.equal(alone, got[few])


def test_no_visible_row_gives_zero() -> None:
    named, bias = sources([torch.full((3, 2), -1)], [torch.randn(2, 8)])
    out = sa.sparse_attention(torch.randn(3, 2, 8), named, bias, torch.zeros(2), scale=1.0)
    assert torch.equal(out, torch.zeros(3, 2, 8))
    empty = [sa.Source(torch.empty(0, 2, 8))]
    assert sa.sparse_attention(torch.empty(0, 2, 8), empty, bias[:0], torch.zeros(2), scale=1.0).shape == (0, 2, 8)


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


@settings(deadline=None)
@given(st.lists(st.sampled_from([-1.5, 0.0, 1.0, 2.0, float("-inf")]), min_size=1, max_size=40), st.integers(1, 12))
def test_packed_selection_is_the_sorted_one(values: list[float], count: int) -> None:
    scores = torch.tensor([values])
    assert torch.equal(selection.select_positions(scores, count), reference.select_positions(scores, count))
    assert torch.equal(selection.best_blocks(scores, count), reference.best_blocks(scores, count))


def test_scores_in_key_tiles(seeded: int) -> None:
    torch.manual_seed(seeded)
    q, w, keys, visible = torch.randn(3, 2, 8), torch.randn(3, 2), torch.randn(21, 8), torch.tensor([9, 2, 0])
    tiled = sa.index_scores(q, w, keys, visible, key_tile=8)
    torch.testing.assert_close(tiled, sa.index_scores(q, w, keys, visible))
    assert torch.equal(sa.index_scores(q, w, keys[:9], visible, key_tile=8), tiled[:, :9])
