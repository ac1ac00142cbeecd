from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.workers.engine.factories import tiny_llama
from workers.engine.layout import ALIGNMENT, CacheLayout
from workers.models.base import CacheSpec, PagedGroup, Plane

V41_LIKE = CacheSpec(
    layout_version=1,
    block_tokens=128,
    paged=(
        PagedGroup("latents", (2, 5, 8), 2, (Plane("data", torch.uint8, (256,)), Plane("scales", torch.uint8, (32,)))),
        PagedGroup("index", (2,), 1, (Plane("data", torch.uint8, (64,)), Plane("scales", torch.uint8, (4,)))),
    ),
)


def test_regions_are_aligned_apart_and_inside_the_block() -> None:
    layout = CacheLayout(V41_LIKE)
    regions = sorted(layout.regions.values(), key=lambda region: region.offset)
    assert all(region.offset % ALIGNMENT == 0 for region in regions)
    for before, after in itertools.pairwise(regions):
        assert before.offset + before.nbytes <= after.offset
    assert regions[-1].offset + regions[-1].nbytes <= layout.block_bytes
    assert layout.block_bytes % ALIGNMENT == 0
    assert layout.block_bytes == 3 * 64 * 288 + 128 * 68


def test_rows_per_block_follow_the_ratio() -> None:
    layout = CacheLayout(V41_LIKE)
    assert layout.regions["latents", 5, "data"].shape == (64, 256)
    assert layout.regions["index", 2, "scales"].shape == (128, 4)


def test_views_are_strided_over_the_pool_and_share_its_memory() -> None:
    layout = CacheLayout(tiny_llama().cache_spec())
    pool = torch.zeros(5, layout.block_bytes, dtype=torch.uint8)
    view = layout.views(pool).paged("attention", 1, "keys")
    assert view.shape == (5, 2, 8, 4)  # slots, heads, channels, rows
    assert view.stride(0) * view.element_size() == layout.block_bytes
    view[3] = 1.0
    assert (pool[3].view(torch.float32) == 1.0).sum() == 2 * 4 * 8
    assert pool[:3].sum() == 0
    assert pool[4].sum() == 0


def test_copying_a_block_copies_every_row_of_every_layer() -> None:
    layout = CacheLayout(tiny_llama().cache_spec())
    pool = torch.randint(0, 256, (4, layout.block_bytes), dtype=torch.uint8)
    pool[2] = pool[0]
    views = layout.views(pool)
    for group, layer, plane in layout.regions:
        raw = views.paged(group, layer, plane).view(torch.uint8)
        assert torch.equal(raw[2], raw[0])


def test_a_pool_of_another_shape_is_refused() -> None:
    layout = CacheLayout(V41_LIKE)
    with pytest.raises(ValueError, match="a pool is uint8"):
        layout.views(torch.zeros(2, layout.block_bytes + 64, dtype=torch.uint8))


@given(st.integers(0, 10_000))
def test_blocks_for_is_the_least_that_holds(tokens: int) -> None:
    layout = CacheLayout(V41_LIKE)
    count = layout.blocks_for(tokens)
    assert count * 128 >= tokens > (count - 1) * 128 or count == tokens == 0
