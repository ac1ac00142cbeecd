from __future__ import annotations

import itertools

import pytest
import torch

from kernels.attention import AttentionPlan, PagedCache, Span, attend, reference, rotate_and_write_, write
from kernels.rope import rotary_angles, rotate_

HEADS, KV_HEADS, CHANNELS, ROWS = 6, 2, 32, 16
LAYERS = 3
pytestmark = pytest.mark.usefixtures("path")


def strided_cache(slots: int, dtype: torch.dtype = torch.float32, left_over: float = 1e30) -> PagedCache:
    """One layer of a block-major pool, as the engine hands it out; what nobody wrote is rubbish on purpose."""
    pool = torch.full((slots, LAYERS, 2, KV_HEADS, ROWS * CHANNELS), left_over, dtype=dtype)
    keys, values = pool[:, 1].unbind(1)
    return PagedCache(keys.unflatten(2, (CHANNELS, ROWS)), values.unflatten(2, (ROWS, CHANNELS)))


def make_spans(shapes: list[tuple[int, int]]) -> tuple[list[Span], int]:
    """(context, count) pairs to spans with shuffled block tables; also the number of slots."""
    needed = [-(-(context + count) // ROWS) for context, count in shapes]
    order = torch.randperm(sum(needed) + 3).tolist()
    spans, start, taken = [], 0, 0
    for (context, count), blocks in zip(shapes, needed, strict=True):
        spans.append(Span(start, count, context, order[taken : taken + blocks]))
        start += count
        taken += blocks
    return spans, len(order)


def fill(cache: PagedCache, spans: list[Span]) -> None:
    """Random keys and values for everything that was cached before the step."""
    before = [Span(0, span.context, 0, span.slots) for span in spans if span.context]
    for span in before:
        keys, values = torch.randn(2, span.count, KV_HEADS, CHANNELS)
        write(keys, values, cache, AttentionPlan.build([span], ROWS))


def step(
    shapes: list[tuple[int, int]],
    *,
    invariant: bool = False,
    dtype: torch.dtype = torch.float32,
    left_over: float = 1e30,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(what attend gives, what the definition gives) for one step."""
    spans, slots = make_spans(shapes)
    cache = strided_cache(slots, dtype, left_over)
    fill(cache, spans)
    rows = sum(span.count for span in spans)
    plan = AttentionPlan.build(spans, ROWS, invariant=invariant)
    write(*torch.randn(2, rows, KV_HEADS, CHANNELS), cache, plan)
    queries = torch.randn(rows, HEADS, CHANNELS)
    return attend(queries, cache, plan), reference.attend(queries, cache, plan)


SHAPES = [
    pytest.param([(0, 1)], id="first-token"),
    pytest.param([(0, 7)], id="prompt"),
    pytest.param([(9, 5)], id="chunk-after-context"),
    pytest.param([(3, 1), (8, 1), (200, 1), (15, 1)], id="ragged-decode"),
    pytest.param([(3, 1), (0, 12), (40, 1), (17, 33), (5, 1)], id="mixed"),
    pytest.param([(127, 1), (128, 1), (129, 130)], id="tile-edges"),
    pytest.param([(15, 1), (16, 1), (63, 2), (64, 64)], id="block-edges"),
]


@pytest.mark.parametrize("shapes", SHAPES)
@pytest.mark.parametrize("invariant", [False, True])
def test_equals_the_definition(shapes: list[tuple[int, int]], invariant: bool) -> None:
    torch.manual_seed(0)
    actual, expected = step(shapes, invariant=invariant)
    torch.testing.assert_close(actual, expected, atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize("shapes", SHAPES)
@pytest.mark.parametrize("invariant", [False, True])
def test_what_an_earlier_owner_left_in_a_block_does_not_matter(shapes: list[tuple[int, int]], invariant: bool) -> None:
    actual, expected = step(shapes, invariant=invariant, left_over=float("nan"))
    assert expected.isfinite().all()
    torch.testing.assert_close(actual, expected, atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize("invariant", [False, True])
def test_a_bf16_cache_is_read_as_its_values(invariant: bool) -> None:
    torch.manual_seed(0)
    actual, expected = step([(3, 1), (0, 12), (17, 9)], invariant=invariant, dtype=torch.bfloat16)
    torch.testing.assert_close(actual, expected, atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize("invariant", [False, True])
def test_no_rows_give_no_rows(invariant: bool) -> None:
    plan = AttentionPlan.build([], ROWS, invariant=invariant)
    cache = strided_cache(2)
    write(*torch.zeros(2, 0, KV_HEADS, CHANNELS), cache, plan)
    assert attend(torch.zeros(0, HEADS, CHANNELS), cache, plan).shape == (0, HEADS, CHANNELS)


@pytest.mark.parametrize("cuts", [(1,), (16,), (50, 51, 52), (7, 100, 130), tuple(range(1, 140))])
def test_invariant_rows_are_equal_to_the_bit_however_the_request_is_cut(cuts: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    length = 140
    slots = torch.randperm(9).tolist()
    queries = torch.randn(length, HEADS, CHANNELS)
    rows = torch.randn(length, 2, KV_HEADS, CHANNELS)
    neighbour = Span(0, 1, 20, [9, 10])

    def run(edges: list[int], company: bool) -> torch.Tensor:
        cache = strided_cache(11)
        fill(cache, [neighbour])
        outputs = []
        for first, last in itertools.pairwise(edges):
            skip = 1 if company else 0
            spans = [Span(skip, last - first, first, slots)]
            step_rows, step_queries = rows[first:last], queries[first:last]
            if company:
                spans = [neighbour, *spans]
                step_rows = torch.cat((torch.randn_like(step_rows[:1]), step_rows))
                step_queries = torch.cat((torch.randn_like(step_queries[:1]), step_queries))
            plan = AttentionPlan.build(spans, ROWS, invariant=True)
            write(step_rows[:, 0], step_rows[:, 1], cache, plan)
            outputs.append(attend(step_queries, cache, plan)[skip:])
        return torch.cat(outputs)

    whole = run([0, length], company=False)
    assert torch.equal(run([0, *cuts, length], company=False), whole)
    assert torch.equal(run([0, *cuts, length], company=True), whole)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rotating_and_writing_at_once(dtype: torch.dtype) -> None:
    spans, slots = make_spans([(3, 1), (0, 20), (40, 1)])
    plan = AttentionPlan.build(spans, ROWS)
    together, apart = strided_cache(slots, dtype, 0.0), strided_cache(slots, dtype, 0.0)
    qkv = torch.randn(22, HEADS + 2 * KV_HEADS, CHANNELS)
    angles = rotary_angles(torch.arange(22), 100.0 ** -(torch.arange(0, CHANNELS, 2) / CHANNELS))
    expected = rotate_(qkv[:, :-KV_HEADS].clone(), angles)
    write(expected[:, HEADS:], qkv[:, -KV_HEADS:], apart, plan)
    rotate_and_write_(qkv, angles, together, plan)
    torch.testing.assert_close(qkv[:, :HEADS], expected[:, :HEADS])
    torch.testing.assert_close(together.keys, apart.keys)
    assert torch.equal(together.values, apart.values)


def test_a_key_that_is_not_a_number_reaches_the_rows_that_see_it() -> None:
    spans, slots = make_spans([(0, 20)])
    cache, plan = strided_cache(slots), AttentionPlan.build(spans, ROWS)
    keys, values = torch.randn(2, 20, KV_HEADS, CHANNELS)
    keys[10] = float("nan")
    write(keys, values, cache, plan)
    result = attend(torch.randn(20, HEADS, CHANNELS), cache, plan)
    assert result[:10].isfinite().all()
    assert not result[10:].isfinite().any()


def test_small_blocks_take_the_eager_path() -> None:
    cache = PagedCache(torch.zeros(3, KV_HEADS, 8, 4), torch.zeros(3, KV_HEADS, 4, 8))
    assert not cache.plain
    plan = AttentionPlan.build([Span(0, 5, 0, [2, 1])], 4)
    keys, values, queries = torch.randn(5, KV_HEADS, 8), torch.randn(5, KV_HEADS, 8), torch.randn(5, HEADS, 8)
    write(keys, values, cache, plan)
    torch.testing.assert_close(attend(queries, cache, plan), reference.attend(queries, cache, plan))
