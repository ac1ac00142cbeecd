"""One sequence, cut and rolled back in every way, gives the numbers of one whole pass."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.workers.models.deepseek_v41.factories import TINY, random_ids, token_windows
from workers.models.deepseek_v41.errors import CacheError, ConfigError, InputError
from workers.models.deepseek_v41.formats import CacheFormats
from workers.models.deepseek_v41.model import DeepseekV41, Trim
from workers.models.deepseek_v41.prefill import prefill

TOLERANCE = 1e-9
LONGEST = 70
W = TINY.sliding_window

chunkings = st.lists(st.integers(1, 25), min_size=1, max_size=8)
formats = st.sampled_from(CacheFormats)


def close(got: torch.Tensor, wanted: torch.Tensor) -> None:
    torch.testing.assert_close(got, wanted, atol=TOLERANCE, rtol=0)


@settings(max_examples=15, deadline=None)
@given(chunkings, formats, st.integers(0, 1000))
def test_chunks_equal_whole(model: DeepseekV41, sizes: list[int], cache_formats: CacheFormats, seed: int) -> None:
    ids = random_ids(min(LONGEST, sum(sizes)), seed)
    whole = model.forward(ids, model.new_cache(cache_formats))
    cache = model.new_cache(cache_formats)
    parts = [model.forward(part, cache) for part in ids.split(_fit(sizes, len(ids)))]
    close(torch.cat([part.logits for part in parts]), whole.logits)
    assert torch.equal(torch.stack([p.expert_counts for p in parts]).sum(0), whole.expert_counts)
    assert cache.length == cache.paged_tokens == len(ids)


def _fit(sizes: list[int], total: int) -> list[int]:
    cut, left = [], total
    for size in sizes:
        cut.append(min(size, left))
        left -= cut[-1]
    return [size for size in cut if size]


@settings(max_examples=15, deadline=None)
@given(chunkings, formats, st.integers(0, 1000))
def test_trimmed_prefill(model: DeepseekV41, sizes: list[int], cache_formats: CacheFormats, seed: int) -> None:
    """`mask` and `compact` agree in the rows kept, whatever the chunks, and so does decoding after them."""
    ids = random_ids(min(LONGEST, sum(sizes) + 2), seed)
    prompt, following = ids[:-2], ids[-2:]
    mask_cache, cache = model.new_cache(cache_formats), model.new_cache(cache_formats)
    masked = prefill(model, prompt, mask_cache, Trim.MASK)
    tail = model.tail(len(prompt), Trim.COMPACT)
    parts = [model.forward(part, cache, tail) for part in prompt.split(_fit(sizes, len(prompt)))]
    kept = torch.cat([part.logits for part in parts])
    assert len(kept) == min(W, len(prompt))
    close(kept, masked.logits[-len(kept) :])
    close(model.forward(following, cache).logits, model.forward(following, mask_cache).logits)


def test_trimming_leaves_global_rows_exact(model: DeepseekV41) -> None:
    ids = random_ids(LONGEST, 1)
    whole, trimmed = model.new_cache(CacheFormats.FLOAT), model.new_cache(CacheFormats.FLOAT)
    off = prefill(model, ids, whole, Trim.OFF)
    compact = prefill(model, ids, trimmed, Trim.COMPACT, 16)
    for layer, store in whole.latents.items():
        rows = LONGEST // TINY.ratio(layer)
        close(trimmed.latents[layer].view(rows).data, store.view(rows).data)
        close(trimmed.index_keys[layer].view(rows).data, whole.index_keys[layer].view(rows).data)
    # The tail is an approximation of the untrimmed pass from the second layer after `cut` on.
    assert not torch.allclose(compact.logits[-1], off.logits[-1], atol=1e-6)


@pytest.mark.parametrize("cache_formats", CacheFormats)
@pytest.mark.parametrize("prompt_length", [W - 3, W, 20, 31, 40])
@pytest.mark.parametrize("accepted", range(TINY.dspark_block_size + 1))
def test_verify_and_rollback(
    model: DeepseekV41, cache_formats: CacheFormats, prompt_length: int, accepted: int
) -> None:
    """Verify anchor and drafts together, keep the anchor and `accepted` drafts, go on as if nothing else happened."""
    prompt, rest = random_ids(prompt_length, 5), random_ids(4, 6)
    rows = random_ids(1 + TINY.dspark_block_size, 7)
    cache = model.new_cache(cache_formats)
    model.forward(prompt, cache)
    verified = model.forward(rows, cache)
    kept = 1 + accepted
    cache.rollback(prompt_length + kept)
    after = model.forward(rest, cache)
    plain_cache = model.new_cache(cache_formats)
    plain = model.forward(torch.cat((prompt, rows[:kept], rest)), plain_cache).logits
    close(verified.logits[:kept], plain[prompt_length : prompt_length + kept])
    close(after.logits, plain[prompt_length + kept :])
    assert model.drafter is not None
    close(model.draft(9, cache).logits, model.draft(9, plain_cache).logits)


def test_rollback_twice_and_past_what_is_held(model: DeepseekV41) -> None:
    cache = model.new_cache(CacheFormats.FLOAT)
    model.forward(random_ids(40, 1), cache)
    with pytest.raises(CacheError, match="cannot go back to 20"):
        cache.rollback(20)
    with pytest.raises(CacheError, match="40 tokens have been processed"):
        cache.rollback(41)
    assert cache.length == 40
    cache.rollback(38)
    cache.rollback(37)
    assert cache.length == len(cache.ids) == 37


def test_stays_finite_for_rows_of_zeros(tiny_folder: object, model: DeepseekV41) -> None:
    """eps is 1e-20: an embedding of zeros must not divide by zero, in float32 or bfloat16."""
    from workers.models.deepseek_v41.loading import LoadOptions, load

    for dtype in (torch.float32, torch.bfloat16):
        zeroed = load(tiny_folder, LoadOptions(dtype=dtype))  # type: ignore[arg-type]
        zeroed.embed.data[7] = 0
        result = zeroed.forward(torch.tensor([7, 7, 7, 7, 7]), zeroed.new_cache(CacheFormats.TRAINED))
        assert result.logits.isfinite().all()


def test_empty_input_changes_nothing(model: DeepseekV41) -> None:
    cache = model.new_cache(CacheFormats.FLOAT)
    model.forward(random_ids(9, 1), cache)
    assert len(model.forward(torch.empty(0, dtype=torch.int64), cache).logits) == 0
    assert cache.length == 9


def test_refuses_before_any_work(model: DeepseekV41) -> None:
    cache = model.new_cache(CacheFormats.FLOAT)
    with pytest.raises(InputError, match="513 tokens are more than the context of 512"):
        prefill(model, torch.zeros(513, dtype=torch.int64), cache)
    with pytest.raises(InputError, match="token 1 is 192, outside the vocabulary of 192"):
        model.forward(torch.tensor([0, 192]), cache)
    assert cache.length == 0


def test_no_trim_where_layers_do_not_allow_it(model: DeepseekV41, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(model.config), "can_trim", False)
    with pytest.raises(ConfigError, match="cannot be trimmed"):
        model.tail(100, Trim.COMPACT)


def test_image_ids_differ_from_text(model: DeepseekV41) -> None:
    """The image token stops n-grams and takes its own routing bias; the other sentinels take the bias alone."""
    first = TINY.image_token_id
    rows = model.hashes(token_windows(torch.tensor([5, 6, first, 8]), 4))
    padded = model.hashes(token_windows(torch.tensor([TINY.engram_pad_token_id, 8]), 4))
    assert torch.equal(rows[2], model.hashes(token_windows(torch.tensor([TINY.engram_pad_token_id]), 4))[0])
    assert torch.equal(rows[3], padded[1])
    other = model.hashes(token_windows(torch.tensor([5, 6, first + 1, 8]), 4))
    assert not torch.equal(other[2], rows[2])
