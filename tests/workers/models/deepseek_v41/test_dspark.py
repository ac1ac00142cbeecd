"""The drafter: short contexts, image-free routing, temperatures, and that greedy speculation is greedy decoding."""

import pytest
import torch

from tests.workers.models.deepseek_v41.factories import TINY, random_ids
from workers.models.deepseek_v41.formats import CacheFormats
from workers.models.deepseek_v41.model import DeepseekV41


@pytest.mark.parametrize("length", [1, 2, TINY.sliding_window - 1, TINY.sliding_window, TINY.sliding_window + 5])
def test_context_shorter_than_the_window(model: DeepseekV41, length: int) -> None:
    """However the context came in, the draft sees the same rows; it leaves the cache as it was."""
    assert model.drafter is not None
    ids = random_ids(length, 2)
    whole, single = model.new_cache(CacheFormats.FLOAT), model.new_cache(CacheFormats.FLOAT)
    model.forward(ids, whole)
    for token in ids:
        model.forward(token[None], single)
    first = model.draft(3, whole)
    torch.testing.assert_close(model.draft(3, single).logits, first.logits, atol=1e-9, rtol=0)
    torch.testing.assert_close(model.draft(3, whole).logits, first.logits, atol=0, rtol=0)
    assert first.tokens.shape == first.confidence.shape == (TINY.dspark_block_size,)
    assert ((first.confidence > 0) & (first.confidence < 1)).all()


def test_without_any_context(model: DeepseekV41) -> None:
    assert model.drafter is not None
    draft = model.draft(3, model.new_cache(CacheFormats.FLOAT))
    assert draft.logits.isfinite().all()


def test_context_older_than_the_window_is_invisible(model: DeepseekV41) -> None:
    assert model.drafter is not None
    cache = model.new_cache(CacheFormats.FLOAT)
    model.forward(random_ids(30, 4), cache)
    before = model.draft(3, cache).logits
    for ring in cache.draft_windows:
        oldest = cache.length - TINY.sliding_window - 1
        assert ring.begin <= oldest
        ring.rows.data[oldest % ring.capacity] = 1e3
    torch.testing.assert_close(model.draft(3, cache).logits, before, atol=0, rtol=0)
    for ring in cache.draft_windows:
        ring.rows.data[(oldest + 1) % ring.capacity] = 1e3
    assert not torch.equal(model.draft(3, cache).logits, before)


def test_temperatures_calibrate_confidence_only(model: DeepseekV41) -> None:
    assert model.drafter is not None
    cache = model.new_cache(CacheFormats.FLOAT)
    model.forward(random_ids(12, 4), cache)
    plain, warm = model.draft(3, cache), model.draft(3, cache, [2.0] * TINY.dspark_block_size)
    assert torch.equal(plain.tokens, warm.tokens)
    torch.testing.assert_close(warm.confidence.logit(), plain.confidence.logit() / 2)


@pytest.mark.parametrize("cache_formats", CacheFormats)
def test_greedy_speculation_is_greedy_decoding(model: DeepseekV41, cache_formats: CacheFormats) -> None:
    prompt, wanted = random_ids(21, 8), 24
    plain_cache = model.new_cache(cache_formats)
    plain = [int(model.forward(prompt, plain_cache).logits[-1].argmax())]
    while len(plain) < wanted:
        plain.append(int(model.forward(torch.tensor(plain[-1:]), plain_cache).logits[-1].argmax()))
    assert speculate(model, prompt, cache_formats, wanted) == plain


def speculate(model: DeepseekV41, prompt: torch.Tensor, formats: CacheFormats, wanted: int) -> list[int]:
    assert model.drafter is not None
    cache = model.new_cache(formats)
    tokens = [int(model.forward(prompt, cache).logits[-1].argmax())]
    while len(tokens) < wanted:
        draft = model.draft(tokens[-1], cache).tokens
        start = cache.length
        best = model.forward(torch.cat((torch.tensor(tokens[-1:]), draft)), cache).logits.argmax(-1)
        accepted = int((best[:-1] == draft).int().cumprod(0).sum())
        tokens += [*draft[:accepted].tolist(), int(best[accepted])]
        cache.rollback(start + 1 + accepted)
    return tokens[:wanted]
