"""Requests that share steps, in any make-up, get the numbers that each gets alone."""

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.workers.models.deepseek_v41.driver import Driver, alone
from tests.workers.models.deepseek_v41.factories import TINY, random_ids
from workers.models.deepseek_v41.errors import InputError
from workers.models.deepseek_v41.formats import CacheFormats
from workers.models.deepseek_v41.model import DeepseekV41
from workers.models.deepseek_v41.serving import ServedDeepseekV41, ServingOptions, load_served
from workers.models.deepseek_v41.trim import Trim

W = TINY.sliding_window
EXACT = 1e-9
"""In float64."""


def served(
    model: DeepseekV41, trim: Trim = Trim.COMPACT, formats: CacheFormats = CacheFormats.TRAINED
) -> ServedDeepseekV41:
    return ServedDeepseekV41(model, ServingOptions(trim=trim, cache_formats=formats))


@settings(max_examples=6, deadline=None)
@given(data=st.data(), trim=st.sampled_from(Trim), formats=st.sampled_from(CacheFormats))
def test_ragged_batches_equal_single_runs(
    model: DeepseekV41, data: st.DataObject, trim: Trim, formats: CacheFormats
) -> None:
    """Prompts in chunks beside requests that decode, several at once."""
    ready = served(model, trim, formats)
    driver = Driver(ready)
    texts = [(random_ids(data.draw(st.integers(2, 60)), seed), seed) for seed in range(4)]
    requests = [driver.request(ids, prompt=data.draw(st.integers(1, len(ids)))) for ids, _ in texts]
    while left := [request for request in requests if request.done < len(request.ids)]:
        some = data.draw(st.lists(st.sampled_from(left), min_size=1, unique_by=id))
        parts = []
        for request in some:
            prompt_left = request.prompt - request.done
            parts.append((request, data.draw(st.integers(1, prompt_left)) if prompt_left > 0 else 1))
        driver.step(parts)
    for request in requests:
        wanted = alone(ready, torch.tensor(request.ids), request.prompt)
        torch.testing.assert_close(request.all_logits(), wanted, atol=EXACT, rtol=0)


def test_a_batch_is_what_one_sequence_gives(model: DeepseekV41) -> None:
    """The batch's form of the model against the one that the goldens hold."""
    ids = random_ids(45, 2)
    cache = model.new_cache(CacheFormats.FLOAT)
    tail = model.tail(40, Trim.COMPACT)
    wanted = [model.forward(ids[:40], cache, tail).logits, model.forward(ids[40:], cache).logits]
    got = alone(served(model, formats=CacheFormats.FLOAT), ids, 40, [7, 20])
    torch.testing.assert_close(got, torch.cat(wanted).float(), atol=1e-6, rtol=0)


def test_mask_is_the_oracle_of_compact(model: DeepseekV41) -> None:
    ids = random_ids(61, 3)
    compact = alone(served(model, Trim.COMPACT), ids, 50, [13, 30])
    mask = alone(served(model, Trim.MASK), ids, 50, [50])
    torch.testing.assert_close(compact, mask[-len(compact) :], atol=EXACT, rtol=0)
    assert not torch.allclose(compact, alone(served(model, Trim.OFF), ids, 50)[-len(compact) :], atol=1e-4)


@pytest.mark.parametrize("chunks", [[60], [9, 11, 40], [55, 2, 2, 1]])
def test_layers_after_the_cut_run_the_tail_alone(model: DeepseekV41, chunks: list[int]) -> None:
    """However a prompt is cut, its tail's rows and the outputs are all that the late layers see."""
    driver = Driver(served(model))
    request = driver.request(random_ids(63, 1), prompt=60)
    driver.finish(request, [*chunks, 1, 1, 1])
    assert driver.layer_rows == [63] * TINY.cut + [W + 3] * (TINY.num_hidden_layers - TINY.cut)


@pytest.mark.parametrize("trim", [Trim.COMPACT, Trim.OFF])
@pytest.mark.parametrize("hit_blocks", [1, 2, 5, 8])
def test_a_hit_equals_a_cold_run(model: DeepseekV41, trim: Trim, hit_blocks: int) -> None:
    """At every block boundary, with a few or many new tokens, decoding after it; the blocks were partly decoded."""
    ready = served(model, trim)
    generator = torch.Generator().manual_seed(hit_blocks)
    hit = hit_blocks * W
    for new in {1, int(torch.randint(2, 60, (1,), generator=generator))}:
        text = random_ids(hit + new + 3, 50 + new)
        driver = Driver(ready)
        source = driver.request(text[:hit], prompt=max(1, hit - 11))
        driver.finish(source, [source.prompt, *[1] * 11])
        before = driver.blocks.clone()
        warm = driver.request(text, hit + new, hit=source, hit_tokens=hit)
        driver.finish(
            warm,
            [5, hit + new - warm.done - 5, 1, 1, 1] if warm.done + 5 < hit + new else [hit + new - warm.done, 1, 1, 1],
        )
        assert torch.equal(driver.blocks[source.slots], before[source.slots]), "blocks of the hit were written"
        cold = alone(ready, text, hit + new)
        # Without a tail only the prompt's last row is asked to be exact (`replay_start`), and what follows it.
        kept = 1 + 3 if trim is Trim.OFF else min(len(cold), new + 3)
        torch.testing.assert_close(warm.all_logits()[-kept:], cold[-kept:], atol=EXACT, rtol=0)


def test_window_only_replay_is_not_exact(model: DeepseekV41) -> None:
    """What the rule of resume_from buys."""
    ready = served(model)
    text = random_ids(10 * W, 5)
    driver = Driver(ready)
    source = driver.request(text[: 9 * W], prompt=9 * W)
    driver.finish(source)
    warm = driver.request(text, 10 * W, hit=source, hit_tokens=9 * W)
    assert warm.done < 8 * W
    warm.done = warm.rings_from = 8 * W
    assert (driver.finish(warm)[-1] - alone(ready, text, 10 * W)[-1]).abs().max() > 1e-6


def test_seats_do_not_leak(model: DeepseekV41) -> None:
    """What an earlier request left in a seat's rings, not a number perhaps, is never seen."""
    ready = served(model, formats=CacheFormats.FLOAT)
    driver = Driver(ready)
    driver.seats.view(torch.float64).fill_(torch.nan)
    driver.blocks.view(torch.float64).fill_(torch.nan)
    request = driver.request(random_ids(40, 7), prompt=30)
    driver.seats[request.seat].view(torch.float64).fill_(torch.nan)
    got = driver.finish(request, [4, 20, 6, *[1] * 10])
    torch.testing.assert_close(got, alone(ready, torch.tensor(request.ids), 30), atol=EXACT, rtol=0)


def test_the_look_back_must_be_there(model: DeepseekV41) -> None:
    driver = Driver(served(model))
    request = driver.request(random_ids(20, 7), prompt=20)
    driver.step([(request, 10)])
    driver.model.look_back = 2
    with pytest.raises(InputError, match="Engram looks back at 3"):
        driver.step([(request, 5)])


@pytest.fixture(scope="module")
def invariant(quantized_folder: Path) -> ServedDeepseekV41:
    return load_served(quantized_folder, ServingOptions(batch_invariant=True))


@pytest.fixture(scope="module")
def plain(tiny_folder: Path) -> ServedDeepseekV41:
    return load_served(tiny_folder)


def company(ready: ServedDeepseekV41, ids: torch.Tensor, prompt: int) -> torch.Tensor:
    """The text's logits when it runs in pieces, beside others, after a hit of its first blocks."""
    driver = Driver(ready)
    source = driver.request(ids[: 4 * W], prompt=4 * W)
    driver.finish(source, [10, 10])
    watched = driver.request(ids, prompt, hit=source, hit_tokens=4 * W)
    others = [driver.request(random_ids(70, seed), prompt=29) for seed in (1, 2)]
    while watched.done < len(ids):
        left = prompt - watched.done
        part = [(watched, min(7, left) if left > 0 else 1)]
        driver.step([(others[0], 3), *part, (others[1], 1)])
    return watched.all_logits()


def test_company_changes_rounding_only(plain: ServedDeepseekV41) -> None:
    ids = random_ids(5 * W + 9, 6)
    wanted = alone(plain, ids, 5 * W + 4)
    torch.testing.assert_close(company(plain, ids, 5 * W + 4)[-len(wanted) :], wanted, atol=2e-5, rtol=0)


def test_company_changes_not_a_bit_in_the_invariant_mode(invariant: ServedDeepseekV41) -> None:
    ids = random_ids(5 * W + 9, 6)
    wanted = alone(invariant, ids, 5 * W + 4)
    assert torch.equal(company(invariant, ids, 5 * W + 4)[-len(wanted) :], wanted)


@pytest.mark.parametrize("weight_format", ["fp32", "bf16", "w8", "w8a8"])
def test_weight_formats(quantized_folder: Path, weight_format: str) -> None:
    """Every format runs; they differ by their precision."""
    ready = load_served(quantized_folder, ServingOptions(weight_format=weight_format, cache_formats=CacheFormats.FLOAT))
    full = load_served(quantized_folder, ServingOptions(cache_formats=CacheFormats.FLOAT))
    ids = random_ids(24, 9)
    got, wanted = alone(ready, ids, 20), alone(full, ids, 20)
    assert ready.weight_format == weight_format
    spread = wanted.std()
    assert (got - wanted).abs().mean() < {"fp32": 1e-9, "bf16": 0.1, "w8": 0.1, "w8a8": 0.3}[weight_format] * spread
