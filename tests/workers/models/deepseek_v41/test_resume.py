"""Exact resume after a prefix hit: equal to a cold run with the trimmed tail, decoding and drafting included."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.workers.models.deepseek_v41.factories import TINY, random_ids
from workers.models.deepseek_v41.cache import SequenceCache
from workers.models.deepseek_v41.errors import CacheError
from workers.models.deepseek_v41.formats import CacheFormats
from workers.models.deepseek_v41.model import DeepseekV41, Trim
from workers.models.deepseek_v41.prefill import Prefill, prefill, resume
from workers.models.deepseek_v41.replay import replay_start, sidecar_span

W = TINY.sliding_window


def stored_windows(model: DeepseekV41, ids: torch.Tensor, span: tuple[int, int], formats: CacheFormats):  # type: ignore[no-untyped-def]
    """Encoder-side rows of [first, last) as a cold run of the first part leaves them."""
    cache = model.new_cache(formats)
    model.forward(ids[: span[1]], cache)
    return cache.window_rows(*span, range(TINY.cut + 1))


@settings(max_examples=20, deadline=None)
@given(
    hit_blocks=st.integers(1, 9),
    new=st.integers(1, 3 * W),
    stored=st.booleans(),
    formats=st.sampled_from(CacheFormats),
    chunk=st.sampled_from([None, 3, W, 19]),
)
def test_resume_equals_cold(
    model: DeepseekV41, hit_blocks: int, new: int, stored: bool, formats: CacheFormats, chunk: int | None
) -> None:
    hit = hit_blocks * W
    ids = random_ids(hit + new, hit * 100 + new)
    source = model.new_cache(formats)
    model.forward(ids[:hit], source)
    windows = stored_windows(model, ids, sidecar_span(TINY, hit, len(ids)), formats) if stored else None
    warm = source.prefix(hit, ids[:hit])
    resumed = resume(model, ids, warm, Trim.COMPACT, windows, chunk)
    cold = model.new_cache(formats)
    same_results(model, resumed, warm, prefill(model, ids, cold, Trim.COMPACT), cold)


def same_results(
    model: DeepseekV41, got: Prefill, got_cache: SequenceCache, wanted: Prefill, wanted_cache: SequenceCache
) -> None:
    rows = len(wanted.logits)
    torch.testing.assert_close(got.logits[-rows:], wanted.logits, atol=1e-9, rtol=0)
    for layer, store in wanted_cache.latents.items():
        count = wanted_cache.length // TINY.ratio(layer)
        for got_plane, plane in zip(
            got_cache.latents[layer].view(count).planes(), store.view(count).planes(), strict=True
        ):
            torch.testing.assert_close(got_plane, plane, atol=1e-9, rtol=0)
    assert model.drafter is not None
    for cache in (got_cache, wanted_cache):
        assert cache.paged_tokens == cache.length
    drafts = [model.draft(11, cache).logits for cache in (got_cache, wanted_cache)]
    torch.testing.assert_close(*drafts, atol=1e-9, rtol=0)
    step = torch.tensor([11, 12, 13])
    after = [model.forward(step, cache).logits for cache in (got_cache, wanted_cache)]
    torch.testing.assert_close(*after, atol=1e-9, rtol=0)


def test_window_only_replay_is_not_exact(model: DeepseekV41) -> None:
    """What the length of the recompute buys: W tokens alone leave a difference that is no rounding."""
    hit, new = 9 * W, 2 * W
    ids = random_ids(hit + new, 1)
    cold = prefill(model, ids, model.new_cache(CacheFormats.FLOAT), Trim.COMPACT)
    source = model.new_cache(CacheFormats.FLOAT)
    model.forward(ids[:hit], source)
    assert 0 < replay_start(TINY, hit, len(ids), stored_rows=False) < hit - W
    warm = source.prefix(hit, ids[:hit])
    warm.replay_from(hit - W)
    short = prefill(model, ids[hit - W :], warm, Trim.COMPACT)
    assert (short.logits[-1] - cold.logits[-1]).abs().max() > 1e-6


@pytest.mark.parametrize(
    ("hit", "prompt", "stored", "start"),
    [
        (1280, 1281, True, 1153),
        (1280, 1280 + 500, True, 1280),
        (128, 130, True, 2),
        (12800, 12801, False, 12800 - 2794),
        (12800, 12800 + 255, False, 12800 - 2540),
        (12800, 20000, False, 12800 - 2540),
        (256, 300, False, 0),
    ],
)
def test_replay_lengths_at_official_sizes(
    official_like: object, hit: int, prompt: int, stored: bool, start: int
) -> None:
    assert replay_start(official_like, hit, prompt, stored_rows=stored) == start  # type: ignore[arg-type]


@pytest.fixture
def official_like() -> object:
    """Just the two numbers that the plan depends on, at their official values."""
    from types import SimpleNamespace

    return SimpleNamespace(sliding_window=128, cut=20)


def test_a_whole_prompt_is_no_hit() -> None:
    with pytest.raises(ValueError, match="leaves no token to run"):
        replay_start(TINY, 16, 16, stored_rows=True)


def test_prefix_must_close_groups(model: DeepseekV41) -> None:
    cache = model.new_cache(CacheFormats.FLOAT)
    model.forward(random_ids(20, 1), cache)
    with pytest.raises(CacheError, match="no usable prefix"):
        cache.prefix(9, cache.ids[:9])
    with pytest.raises(CacheError, match="no usable prefix"):
        cache.prefix(22, cache.ids)
