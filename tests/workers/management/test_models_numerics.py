"""`models inspect`, `models logits` and `models make-nano`, as a user types them."""

import io
import json
import math
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from django.core.management import call_command
from safetensors.torch import load_file, save_file

from controlplane.commands import CommandFailure
from tests.workers.models.deepseek_v41.factories import TINY_QUANTIZED, random_ids, write_tiny
from tests.workers.models.deepseek_v41.test_caches import OFFICIAL
from workers.models.deepseek_v41.formats import CacheFormats
from workers.models.deepseek_v41.layout import Quantized, TensorSpec, expected_tensors
from workers.models.deepseek_v41.loading import load
from workers.models.deepseek_v41.model import Trim
from workers.models.deepseek_v41.prefill import prefill

pytestmark = pytest.mark.usefixtures("one_thread")
SHARDS = 48
PARAMETERS = 763_000_000_000


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """Tiny tensors: more threads only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def models(*words: object) -> str:
    out = io.StringIO()
    call_command("models", *map(str, words), stdout=out)
    return out.getvalue()


def released_entries(spec: TensorSpec) -> list[tuple[str, str, list[int]]]:
    """(name, dtype, shape) as the release stores a tensor, its scales after it."""
    shape = list(spec.shape)
    rows, columns = shape if len(shape) == 2 else (1, 1)
    if spec.quantized is Quantized.EXPERT:
        scale = [rows, columns // 32]
        return [(spec.name, "I8", [rows, columns // 2]), (spec.scale_name, "F8_E8M0", scale)]
    if spec.quantized is Quantized.NEVER:
        return [(spec.name, "BF16", shape)]
    down = 32 if spec.quantized is Quantized.BLOCKS else 1
    scale = [math.ceil(rows / down), math.ceil(columns / 32)]
    return [(spec.name, "F8_E4M3", shape), (spec.scale_name, "F8_E8M0", scale)]


BITS = {"I8": 8, "F8_E8M0": 8, "F8_E4M3": 8, "BF16": 16}


@pytest.fixture(scope="module")
def official_headers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The headers of the released checkpoint, 48 shards and about 96 thousand tensors, with nothing behind them."""
    folder = tmp_path_factory.mktemp("official")
    (folder / "config.json").write_text(json.dumps(OFFICIAL.to_dict()))
    entries = [entry for spec in expected_tensors(OFFICIAL) for entry in released_entries(spec)]
    weight_map = {}
    for shard in range(SHARDS):
        offset, header = 0, {}
        for name, dtype, shape in entries[shard * len(entries) // SHARDS : (shard + 1) * len(entries) // SHARDS]:
            end = offset + math.prod(shape) * BITS[dtype] // 8
            header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, end]}
            weight_map[name] = file = f"model-{shard + 1:05d}-of-{SHARDS:05d}.safetensors"
            offset = end
        raw = json.dumps(header).encode()
        (folder / file).write_bytes(len(raw).to_bytes(8, "little") + raw)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return folder


def test_inspect_the_official_headers(official_headers: Path) -> None:
    started = time.process_time()
    found = json.loads(models("inspect", official_headers, "--cards", 64, "--redundant-experts", 64, "--json"))
    # A bound of seconds of processor time, so that a busy machine does not matter: not a timing, a different order.
    assert time.process_time() - started < 30
    assert found["files"] == SHARDS
    assert found["missing"] == found["unexpected"] == found["misshapen"] == []
    assert found["parameters"] == pytest.approx(PARAMETERS, rel=0.01)
    parts = {part["name"]: part for part in found["parts"]}
    per_expert = 18_800_640
    assert parts["experts"]["nbytes"] == (40 * 384 + 3 * 128) * per_expert
    # 384 + 64 replicas over 64 cards are 7 a layer; the draft stages' 128 are 2.
    assert parts["experts"]["card_bytes"] == (40 * 7 + 3 * 2) * per_expert
    assert parts["engram"]["nbytes"] == (384_006_168 + 384_016_682) * (256 + 8)
    assert len([note for note in found["notes"] if "lacks" in note]) == SHARDS


def test_inspect_names_what_is_missing(tmp_path: Path) -> None:
    write_tiny(tmp_path, TINY_QUANTIZED)
    (tmp_path / "model.safetensors.index.json").unlink()
    shard = tmp_path / "model-00001-of-00001.safetensors"
    tensors = load_file(shard)
    del tensors["layers.2.attn.compressor.wkv.weight"]
    tensors["layers.0.extra"] = torch.ones(1)
    save_file(tensors, shard)
    text = models("inspect", tmp_path)
    assert "missing: layers.2.attn.compressor.wkv.weight" in text
    assert "unexpected: layers.0.extra" in text
    with pytest.raises(CommandFailure, match="2 problems"):
        models("inspect", tmp_path, "--strict")


def write_llama(folder: Path) -> Path:
    from workers.models.llama.config import LlamaConfig
    from workers.models.llama.names import expected_shapes

    raw = {
        "model_type": "llama",
        "vocab_size": 64,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 128,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": True,
    }
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(raw))
    shapes = expected_shapes(LlamaConfig.from_hf(raw))
    save_file({name: torch.randn(shape) / 6 for name, shape in shapes.items()}, folder / "model.safetensors")
    return folder


def test_inspect_llama(tmp_path: Path) -> None:
    found = json.loads(models("inspect", write_llama(tmp_path), "--cards", 2, "--json"))
    assert found["family"] == "llama"
    assert found["parameters"] == 64 * 32 + 32 + 2 * (2 * 32 + 32 * 32 * 2 + 16 * 32 * 2 + 3 * 32 * 48)
    parts = {part["name"]: part for part in found["parts"]}
    assert parts["attention"]["card_bytes"] * 2 == parts["attention"]["nbytes"]
    assert parts["embeddings"]["card_bytes"] == parts["embeddings"]["nbytes"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["inspect", "no-such-thing"], "neither a folder nor a model in the store"),
        (["inspect", "{tmp}"], r"config.json: cannot be read"),
        (["inspect", "{tiny}", "--cards", "0"], "--cards must be at least 1"),
        (["inspect", "{tiny}", "--split", "wings"], "no part 'wings', only attention"),
        (["make-nano", "{tiny}"], "is not an empty folder"),
        (["logits", "{tiny}", "--ids", "{tmp}/none.json", "--out", "{tmp}/o"], "none.json cannot be read"),
        (["logits", "{tiny}", "--ids", "{tmp}/words.json", "--out", "{tmp}/o"], "not a list of whole numbers"),
        (["logits", "{tiny}", "--ids", "{tmp}/empty.json", "--out", "{tmp}/o"], "holds no token ids"),
        (["logits", "{tiny}", "--ids", "{tmp}/big.json", "--out", "{tmp}/o"], "token 1 is 192, outside the vocabulary"),
        (["logits", "{tiny}", "--ids", "{tmp}/long.json", "--out", "{tmp}/o"], "600 tokens are more than the context"),
        (["logits", "{tiny}", "--ids", "{tmp}/big.json", "--out", "{tmp}/x/o"], "name a file in a folder that exists"),
        (["logits", "{llama}", "--ids", "{tmp}/ones.json", "--out", "{tmp}/o", "--draft"], "no drafts"),
        (["logits", "{llama}", "--ids", "{tmp}/long.json", "--out", "{tmp}/o"], "600 tokens are more than the context"),
        (["logits", "{odd}", "--ids", "{tmp}/ones.json", "--out", "{tmp}/o"], "model_type 'gpt9' is not supported"),
        (["inspect", "{odd}"], "model_type 'gpt9' is not supported|holds no .safetensors"),
    ],
)
def test_bad_input(tmp_path: Path, tiny: Path, words: list[str], message: str) -> None:
    contents = {"words": ["a"], "empty": [], "big": [0, 192], "long": [1] * 600, "ones": [1, 1]}
    for name, ids in contents.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(ids))
    llama = write_llama(tmp_path / "llama")
    odd = tmp_path / "odd"
    odd.mkdir()
    (odd / "config.json").write_text('{"model_type": "gpt9"}')
    with pytest.raises(CommandFailure, match=message):
        models(*(word.format(tmp=tmp_path, tiny=tiny, llama=llama, odd=odd) for word in words))


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("cli"), TINY_QUANTIZED)


@pytest.mark.parametrize(
    ("trim", "formats"),
    [(Trim.OFF, CacheFormats.FLOAT), (Trim.MASK, CacheFormats.TRAINED), (Trim.COMPACT, CacheFormats.TRAINED)],
)
def test_logits(tmp_path: Path, tiny: Path, trim: Trim, formats: CacheFormats) -> None:
    ids, out = random_ids(21, 4), tmp_path / "out.safetensors"
    (tmp_path / "ids.json").write_text(json.dumps(ids.tolist()))
    options = ["--prefill", trim, "--cache-formats", formats, "--draft"]
    models("logits", tiny, "--ids", tmp_path / "ids.json", "--out", out, *options)
    got = load_file(out)
    model = load(tiny)
    cache = model.new_cache(formats)
    wanted = prefill(model, ids, cache, trim)
    torch.testing.assert_close(got["logits"], wanted.logits, atol=1e-4, rtol=0)
    assert len(got["logits"]) == (8 if trim is Trim.COMPACT else 21)
    assert torch.equal(got["expert_counts"], wanted.expert_counts)
    draft = model.draft(int(wanted.logits[-1].argmax()), cache)
    assert torch.equal(got["draft_tokens"], draft.tokens)
    torch.testing.assert_close(got["draft_confidence"], draft.confidence)


def test_llama_logits_do_not_depend_on_chunks(tmp_path: Path) -> None:
    folder = write_llama(tmp_path / "llama")
    (tmp_path / "ids.json").write_text(json.dumps(list(range(40))))
    outs = []
    for words in ([], ["--chunk", 7]):
        out = tmp_path / f"{len(words)}.safetensors"
        models("logits", folder, "--ids", tmp_path / "ids.json", "--out", out, *words)
        outs.append(load_file(out))
    assert outs[0]["logits"].shape == (40, 64)
    assert outs[0]["expert_counts"].shape == (2, 0)
    torch.testing.assert_close(outs[0]["logits"], outs[1]["logits"], atol=1e-4, rtol=0)
