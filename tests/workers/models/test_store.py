from __future__ import annotations

import errno
import fcntl
import json
import shutil
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from kernels import NUMERICS_REVISION
from kernels.native import arithmetic
from kernels.quantization import RowFormat
from tests.workers.models.deepseek_v41.factories import TINY, write_tiny
from tests.workers.models.llama.factories import logits, make_folder
from tests.workers.smollm2 import NAME
from workers.manifest import ManifestError, ModelManifest, read_manifest, write_manifest
from workers.models import store as store_module
from workers.models.add_folder import add_folder
from workers.models.add_package import add_package
from workers.models.base import Plane
from workers.models.catalogue import CATALOGUE
from workers.models.deepseek_v41.cache_spec import row_planes
from workers.models.store import ModelStore, StoreError, cache_identity, load_model, row_format
from workers.spec import PrefillTrim, WeightFormat


def manifest(name: str = "m", family: str = "llama") -> ModelManifest:
    return ModelManifest(
        name=name,
        family=family,
        display_name=name,
        source="tests",
        licence="MIT",
        weights_fingerprint="w",
        tokenizer_fingerprint="t",
        parameters=1,
        max_context=8,
        block_tokens=4,
        vocab_size=10,
        bos_token_id=None,
        eos_token_ids=(),
        chat_format="none",
    )


def hidden(store: ModelStore) -> list[str]:
    return [path.name for path in store.root.iterdir() if path.name.startswith(".work-")]


def test_a_model_appears_when_it_is_complete(tmp_path: Path) -> None:
    store = ModelStore(tmp_path / "models")
    with store.adding("m", needs_bytes=0) as folder:
        assert "m" not in store
        assert store.list() == []
        write_manifest(folder, manifest())
    assert "m" in store
    assert [model.name for model in store.list()] == ["m"]
    assert hidden(store) == []


def test_an_interrupted_attempt_leaves_nothing(tmp_path: Path) -> None:
    store = ModelStore(tmp_path)
    with pytest.raises(KeyboardInterrupt), store.adding("m", needs_bytes=0):
        raise KeyboardInterrupt
    assert "m" not in store
    assert hidden(store) == []


def test_what_a_killed_attempt_left_goes_at_the_next(tmp_path: Path) -> None:
    store = ModelStore(tmp_path)
    (tmp_path / ".work-other").mkdir()
    with store.adding("m", needs_bytes=0) as folder:
        write_manifest(folder, manifest())
    assert hidden(store) == []


def test_one_at_a_time(tmp_path: Path) -> None:
    with (tmp_path / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(StoreError, match="another process"), ModelStore(tmp_path).adding("m", needs_bytes=0):
            pass


def test_no_room_is_said_before_anything_is_fetched(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no room for m"), ModelStore(tmp_path).adding("m", needs_bytes=2**60):
        pass


def test_a_disk_that_fills_up_is_said_as_such(tmp_path: Path) -> None:
    store = ModelStore(tmp_path)
    with pytest.raises(StoreError, match="filled up"), store.adding("m", needs_bytes=0):
        raise OSError(errno.ENOSPC, "No space left on device")
    assert hidden(store) == []


def test_a_model_that_exists_is_not_replaced(tmp_path: Path) -> None:
    store = ModelStore(tmp_path)
    with store.adding("m", needs_bytes=0) as folder:
        write_manifest(folder, manifest())
    with pytest.raises(StoreError, match="already in the store"), store.adding("m", needs_bytes=0):
        pass


@pytest.mark.parametrize("name", ["", "../x", "A", ".hidden", "a/b", "x" * 65])
def test_names_are_names(tmp_path: Path, name: str) -> None:
    with pytest.raises(StoreError, match="is no model name"):
        ModelStore(tmp_path).folder(name)


def test_removing(tmp_path: Path) -> None:
    store = ModelStore(tmp_path)
    with store.adding("m", needs_bytes=0) as folder:
        write_manifest(folder, manifest())
    store.remove("m")
    assert store.list() == []
    with pytest.raises(StoreError, match="not in the model store"):
        store.remove("m")


def test_an_unusable_folder_is_listed_with_its_reason(tmp_path: Path) -> None:
    (tmp_path / "broken").mkdir()
    (model,) = ModelStore(tmp_path).list()
    assert model.manifest is None
    assert "not in the model store" in model.problem


def test_a_family_that_cannot_be_served_is_named(tmp_path: Path) -> None:
    write_manifest(tmp_path, manifest(family="rwkv"))
    with pytest.raises(StoreError, match="'rwkv'"):
        load_model(tmp_path)
    with pytest.raises(ManifestError):
        load_model(tmp_path / "nowhere")


def test_a_local_folder_is_copied_described_and_runs(tmp_path: Path) -> None:
    source = tmp_path / "source"
    make_folder(source, shard_size="60KB", eos_token_id=119, bos_token_id=118)
    (source / "LICENSE").write_text("free")
    (source / "tokenizer_config.json").write_text(json.dumps({"chat_template": "{{ messages }}", "eos_token": "</s>"}))
    seen: list[str] = []
    store = ModelStore(tmp_path / "models")
    added = add_folder(store, "tiny", source, lambda what, done, total: seen.append(what))
    shutil.rmtree(source)
    assert added == read_manifest(store.folder("tiny"))
    assert (added.family, added.chat_format, added.chat_template) == ("llama", "jinja", "{{ messages }}")
    assert (added.eos_token_ids, added.bos_token_id, added.licence) == ((119,), 118, "see LICENSE")
    assert added.special_tokens == {"<s>": 118, "</s>": 119}
    assert "fingerprint" in seen
    model = load_model(store.folder("tiny"))
    assert logits(model, [1, 2, 3]).isfinite().all()  # type: ignore[arg-type]
    identity = cache_identity(added, model)
    assert (identity.weight_format, identity.numerics, identity.cache_dtype) == (
        "fp32",
        f"default/{NUMERICS_REVISION}/cpu",
        "float32",
    )
    invariant = load_model(store.folder("tiny"), weight_format=WeightFormat.BF16, batch_invariant=True)
    other = cache_identity(added, invariant)
    assert (other.weight_format, other.numerics, other.cache_dtype) == (
        "bf16",
        f"batch_invariant-{arithmetic()}/{NUMERICS_REVISION}/cpu",
        "bfloat16",
    )


def v41_source(folder: Path) -> Path:
    write_tiny(folder)
    words = {f"w{number}": number for number in range(100)}
    Tokenizer(WordLevel(words, unk_token="w0")).save(str(folder / "tokenizer.json"))
    return folder


def test_a_v41_folder_is_copied_described_and_runs_in_every_format(tmp_path: Path) -> None:
    store = ModelStore(tmp_path / "models")
    added = add_folder(store, "tiny", v41_source(tmp_path / "source"))
    folder = store.folder("tiny")
    assert added == read_manifest(folder)
    assert (added.family, added.chat_format) == ("deepseek_v41", "deepseek_v41")
    assert (added.block_tokens, added.max_context, added.vocab_size) == (TINY.sliding_window, 512, 192)
    assert (added.bos_token_id, added.eos_token_ids) == (TINY.bos_token_id, (TINY.eos_token_id,))
    seen: list[str] = []
    model = load_model(folder, progress=lambda what, done, total: seen.append(what))
    assert "reading embed.weight" in seen
    assert cache_identity(added, model).weight_format == "fp32"
    prints = {
        cache_identity(added, load_model(folder, weight_format=weight_format)).fingerprint()
        for weight_format in WeightFormat
    }
    assert len(prints) == len(WeightFormat), "a format is part of the identity"
    whole = load_model(folder, prefill_trim=PrefillTrim.OFF)
    assert cache_identity(added, whole) == cache_identity(added, model), "the trim is not"


def test_the_token_map_counts_for_the_fingerprint(tmp_path: Path) -> None:
    store = ModelStore(tmp_path / "models")
    source = v41_source(tmp_path / "source")
    before = add_folder(store, "before", source).weights_fingerprint
    entries = json.loads((source / "token_map.json").read_text())
    (source / "token_map.json").write_text(json.dumps(entries[::-1]))
    assert add_folder(store, "after", source).weights_fingerprint != before


def test_formats_that_share_a_carrier_are_told_apart() -> None:
    assert row_format(Plane("latent", torch.float32, (64,))) == "float32"
    packed = {
        row_format(plane)
        for rows in (RowFormat.E2M1_E4M3_16, RowFormat.E2M1_POW2_32, RowFormat.E4M3_POW2_32)
        for plane in row_planes("latent", 64, rows, torch.float32)[:1]
    }
    assert packed == {"latent:e2m1_e4m3_16", "latent:e2m1_pow2_32", "latent:e4m3_pow2_32"}


def test_the_fingerprint_follows_weights_and_configuration(tmp_path: Path) -> None:
    store = ModelStore(tmp_path / "models")
    prints = []
    for number, changes in enumerate([{}, {}, {"rms_norm_eps": 1e-4}, {"initializer_range": 0.2}]):
        make_folder(tmp_path / str(number), **changes)
        prints.append(add_folder(store, f"m{number}", tmp_path / str(number)).weights_fingerprint)
    assert prints[0] == prints[1]
    assert len(set(prints)) == 3


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda folder: (folder / "config.json").unlink(), "config.json is missing"),
        (lambda folder: (folder / "config.json").write_text("[]"), "not a JSON object"),
        (lambda folder: (folder / "tokenizer.json").unlink(), "tokenizer.json is missing"),
        (lambda folder: (folder / "tokenizer.json").write_text("{}"), "tokenizer.json cannot be read"),
        (lambda folder: (folder / "model.safetensors").unlink(), "safetensors"),
        (
            lambda folder: (folder / "model.safetensors").write_bytes(
                (folder / "model.safetensors").read_bytes()[:-100]
            ),
            "bytes of tensor data are missing",
        ),
    ],
)
def test_an_unusable_folder_is_refused_before_copying(tmp_path: Path, spoil, message: str) -> None:  # type: ignore[no-untyped-def]
    source = tmp_path / "source"
    make_folder(source)
    spoil(source)
    store = ModelStore(tmp_path / "models")
    with pytest.raises(StoreError, match=message):
        add_folder(store, "tiny", source)
    assert store.list() == []


def test_the_default_model_is_described(smollm2_path: Path) -> None:
    described = read_manifest(smollm2_path)
    assert (described.parameters, described.vocab_size, described.max_context) == (134_515_008, 49152, 8192)
    assert (described.chat_format, described.eos_token_ids, described.licence) == ("chatml", (2,), "Apache-2.0")
    assert "Apache License" in (smollm2_path / "LICENSE").read_text()


def test_adding_the_default_model_again_changes_nothing(smollm2_path: Path) -> None:
    before = (smollm2_path / "model.json").stat().st_mtime_ns
    assert add_package(ModelStore(smollm2_path.parent), CATALOGUE[NAME]).name == NAME
    assert (smollm2_path / "model.json").stat().st_mtime_ns == before


def test_loading_does_not_touch_torch_until_asked() -> None:
    assert not hasattr(store_module, "torch")
