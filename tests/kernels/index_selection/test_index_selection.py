"""The native selection against the torch form, which is the definition (V4.1 specification, section 5.3)."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels import index_selection
from kernels import sparse_attention as sa
from kernels.index_selection import Blocks
from kernels.quantization import Places, RowFormat, Rows, decode_rows, encode_rows, round_rows

BLOCK_ROWS, SIZE = 16, 4


class Case:
    """Runs of keys in shuffled pages of a strided pool, and rows of queries over them."""

    def __init__(self, channels: int, counts: list[int], rows: int, *, coarse: bool = False) -> None:
        width = max(-(-count // BLOCK_ROWS) for count in counts)
        self.counts, self.tables = counts, torch.randperm(width * len(counts)).view(len(counts), width)
        # Few different values: many keys score the same.
        keys = torch.randn(len(counts), width * BLOCK_ROWS, channels)
        keys = keys.sign() if coarse else keys * torch.rand(len(counts), width * BLOCK_ROWS, 1).exp2()
        packed = encode_rows(keys, RowFormat.E2M1_POW2_32)
        assert packed.scales is not None
        pages = torch.zeros((width * len(counts), BLOCK_ROWS, channels // 2 + channels // 32 + 3), dtype=torch.uint8)
        self.pool = Rows(packed.format, pages[..., : channels // 2], pages[..., channels // 2 + 1 : -2])
        number = torch.arange(width * BLOCK_ROWS)
        for run in range(len(counts)):
            places = Places(self.tables[run, number // BLOCK_ROWS], number % BLOCK_ROWS)
            self.pool.put(places, Rows(packed.format, packed.data[run], packed.scales[run]))
        self.keys = decode_rows(packed, torch.float32)
        self.owner = torch.randint(len(counts), (rows,))
        self.visible = (torch.rand(rows) * (torch.tensor(counts)[self.owner] + 1)).long()
        queries = torch.randn(rows, 3, channels)
        self.queries = round_rows(queries.round() if coarse else queries, RowFormat.E2M1_POW2_32)
        self.weights = torch.randn(rows, 3).round() if coarse else torch.randn(rows, 3)
        if not index_selection.takes(self.pool, torch.float32):
            pytest.skip("no C++ compiler here")

    def select(
        self, count: int, blocks: Blocks | None = None, rows: slice | torch.Tensor = slice(None)
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        if blocks is not None and blocks.allowed is not None:
            blocks = Blocks(blocks.size, blocks.count, blocks.allowed[rows].contiguous())
        return index_selection.select(
            self.queries[rows],
            self.weights[rows],
            index_selection.pack_keys(self.pool, self.tables, self.counts),
            self.owner[rows],
            self.visible[rows],
            count=count,
            width=count,
            blocks=blocks,
        )

    def wanted(self, count: int, blocks: int) -> list[torch.Tensor]:
        """Unrestricted selection, candidate blocks (bool), selection among them; in float64, where sums are exact."""
        keys = self.keys[self.owner].double()
        visible = self.visible[:, None]
        scores = sa.index_scores(self.queries[:, None].double(), self.weights[:, None].double(), keys, visible)
        # As the kernel has them: rounded, so that what is equal there is equal here.
        scores = scores.float()
        found = sa.candidate_blocks(scores, visible, block_size=SIZE, count=blocks)
        among = sa.restrict_to_blocks(scores, found, block_size=SIZE)
        return [x[:, 0] for x in (sa.select_positions(scores, count), found, sa.select_positions(among, count))]


def same(got: torch.Tensor, wanted: torch.Tensor) -> None:
    assert torch.equal(got[:, : wanted.shape[1]], wanted)
    assert (got[:, wanted.shape[1] :] == -1).all()


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 1000),
    channels=st.sampled_from([32, 64, 128]),
    counts=st.lists(st.integers(1, 300), min_size=1, max_size=3),
    count=st.sampled_from([4, 12, 40]),
)
def test_ties_and_all_sizes(seed: int, channels: int, counts: list[int], count: int) -> None:
    """Small whole numbers, so that every sum is exact: the same positions and blocks, ties and all."""
    torch.manual_seed(seed)
    case, blocks = Case(channels, counts, 7, coarse=True), count // SIZE + 2
    wanted, found, restricted = case.wanted(count, blocks)
    got, candidates = case.select(count, Blocks(SIZE, blocks))
    assert candidates is not None
    same(got, wanted)
    marked = torch.zeros((7, found.shape[1] + 1), dtype=torch.bool)
    marked.scatter_(1, candidates.long() % (found.shape[1] + 1), True)
    assert torch.equal(marked[:, :-1], found)
    same(case.select(count, Blocks(SIZE, blocks, candidates))[0], restricted)
    same(case.select(count)[0], wanted)


def test_random_scores(seeded: int) -> None:
    """Where sums are rounded, what is chosen may differ in scores that are equal to rounding only."""
    torch.manual_seed(seeded)
    case = Case(64, [900, 500, 33], 40)
    got = case.select(32)[0]
    keys = case.keys[case.owner]
    scores = sa.index_scores(case.queries[:, None], case.weights[:, None], keys, case.visible[:, None])[:, 0]
    for row, visible in enumerate(case.visible.tolist()):
        chosen = got[row][got[row] >= 0]
        assert len(chosen) == min(32, visible)
        assert (chosen < visible).all()
        assert (chosen.diff() > 0).all()
        best = scores[row, :visible].sort(descending=True).values[: len(chosen)]
        torch.testing.assert_close(scores[row, chosen].sort(descending=True).values, best, atol=1e-4, rtol=1e-5)


def test_rows_do_not_depend_on_company(seeded: int) -> None:
    torch.manual_seed(seeded)
    case, blocks = Case(32, [400, 77], 30), Blocks(SIZE, 8)
    got, found = case.select(16, blocks)
    assert found is not None
    among, _ = case.select(16, Blocks(SIZE, 8, found))
    threads = torch.get_num_threads()
    torch.set_num_threads(1 if threads > 1 else 2)
    try:
        for rows in (torch.tensor([3]), torch.tensor([28, 3, 11])):
            alone, alone_found = case.select(16, blocks, rows)
            assert alone_found is not None
            assert torch.equal(alone, got[rows])
            assert torch.equal(alone_found, found[rows])
            assert torch.equal(case.select(16, Blocks(SIZE, 8, found), rows)[0], among[rows])
    finally:
        torch.set_num_threads(threads)


def test_zero_queries_take_the_lowest_positions() -> None:
    case = Case(32, [100], 2)
    case.queries.zero_()
    case.visible.fill_(100)
    assert case.select(8)[0].tolist() == [list(range(8))] * 2
