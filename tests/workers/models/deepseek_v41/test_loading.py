"""Strict, streamed loading: errors name the tensor, quantised weights expand or stay, memory stays near the weights."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.workers.models.deepseek_v41.factories import TINY, TINY_QUANTIZED, random_ids, write_tiny
from workers.models.deepseek_v41.errors import LayoutError, TokenMapError
from workers.models.deepseek_v41.formats import CacheFormats
from workers.models.deepseek_v41.loading import LoadOptions, load
from workers.models.safetensors_index import INDEX_NAME, CheckpointError
from workers.models.safetensors_stream import LoadProgress

SHARD = "model-00001-of-00001.safetensors"


@pytest.fixture
def quantized(tmp_path: Path) -> Path:
    """A checkpoint to damage: one shard, no index file to keep in step."""
    write_tiny(tmp_path, TINY_QUANTIZED)
    (tmp_path / INDEX_NAME).unlink()
    return tmp_path


def damage(folder: Path, **changes: torch.Tensor | None) -> None:
    tensors = load_file(folder / SHARD)
    for key, value in changes.items():
        name = key.replace("__", ".")
        tensors.pop(name, None)
        if value is not None:
            tensors[name] = value.contiguous()
    save_file(tensors, folder / SHARD)


U8 = torch.uint8


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layers__2__attn__compressor__wkv__weight": None}, "layers.2.attn.compressor.wkv.weight is missing"),
        ({"layers__4__attn__compressor__wgate__weight": None}, "layers.4.attn.compressor.wgate.weight is missing"),
        ({"layers__5__attn__compressor__wgate__weight": torch.ones(32, 32)}, "wgate.weight is unexpected"),
        ({"layers__3__ffn__experts__1__w2__weight": None}, "layers.3.ffn.experts.1.w2.weight is missing"),
        ({"layers__3__ffn__experts__1__w2__scale": None}, "layers.3.ffn.experts.1.w2.scale is missing"),
        ({"layers__0__attn__wq_b__scale": torch.zeros(1, 1, dtype=U8)}, r"wq_b.scale has shape \[1, 1\], not \[2, 1\]"),
        ({"layers__0__attn__wq_b__scale": torch.zeros(2, 1)}, "wq_b.scale has dtype F32"),
        ({"layers__1__engram__embed__scale": torch.zeros(12, 1, dtype=U8)}, r"has shape \[12, 1\], not \[384, 1\]"),
        ({"norm__weight": torch.ones(31)}, r"tensor norm.weight has shape \[31\], not \[32\]"),
        ({"norm__weight": torch.ones(32, dtype=torch.int64)}, "norm.weight has dtype I64"),
        ({"embed__weight": torch.ones(192, 16, dtype=torch.int8)}, "embed.weight has dtype I8"),
        ({"layers__0__attn__ape": torch.ones(2)}, "layers.0.attn.ape is unexpected"),
    ],
)
def test_layout_errors(quantized: Path, changes: dict[str, torch.Tensor | None], message: str) -> None:
    damage(quantized, **changes)
    with pytest.raises(LayoutError, match=message):
        load(quantized)


def test_every_problem_is_counted(quantized: Path) -> None:
    damage(quantized, **{f"layers__0__ffn__experts__{e}__w{w}__weight": None for e in range(4) for w in (1, 2, 3)})
    with pytest.raises(LayoutError, match="and 4 more") as caught:
        load(quantized)
    assert len(caught.value.problems) == 12


def test_vision_tensors_are_left_alone(quantized: Path) -> None:
    damage(quantized, vision__blocks__0=torch.ones(1), aligner__w=torch.ones(1), image_newline=torch.ones(1))
    load(quantized)


def test_cut_off_file(quantized: Path) -> None:
    file = quantized / SHARD
    with file.open("r+b") as stream:
        stream.truncate(file.stat().st_size - 100)
    with pytest.raises(CheckpointError, match="100 bytes of tensor data are missing"):
        load(quantized)


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ([0] * 192, "1 compressed ids, but engram_compressed_vocab_size is 100"),
        (list(range(100)), "100 entries for a vocabulary of 192"),
        ([n % 101 for n in range(192)], "101 compressed ids"),
        ("no", "not a list"),
    ],
)
def test_token_map_errors(quantized: Path, entries: object, message: str) -> None:
    (quantized / "token_map.json").write_text(json.dumps(entries))
    with pytest.raises(TokenMapError, match=message):
        load(quantized)


def test_token_map_or_tokenizer_is_needed(quantized: Path) -> None:
    (quantized / "token_map.json").unlink()
    with pytest.raises(TokenMapError, match=r"neither token_map.json nor tokenizer.json"):
        load(quantized)


def test_kept_and_expanded_weights_agree(quantized_folder: Path) -> None:
    ids = random_ids(30, 1)
    expanded = load(quantized_folder)
    kept = load(quantized_folder, LoadOptions(keep_quantized=True))
    assert kept.layers[0].moe.stacks[0].data.dtype == torch.int8
    logits = [m.forward(ids, m.new_cache(CacheFormats.FLOAT)).logits for m in (expanded, kept)]
    torch.testing.assert_close(*logits, atol=1e-4, rtol=0)


def test_scales_are_bytes_whatever_their_dtype(quantized: Path) -> None:
    before = load(quantized)
    tensors = load_file(quantized / SHARD)
    scales = {n: t.view(torch.float8_e8m0fnu) for n, t in tensors.items() if n.endswith(".scale")}
    save_file(tensors | scales, quantized / SHARD)
    after = load(quantized)
    assert torch.equal(before.layers[3].attention.wq_b.data, after.layers[3].attention.wq_b.data)


def test_bfloat16_keeps_what_is_computed_in_float32(quantized_folder: Path) -> None:
    model = load(quantized_folder, LoadOptions(dtype=torch.bfloat16, draft=False))
    assert model.drafter is None
    layer = model.layers[2]
    assert layer.attention.wq_a.data.dtype == torch.bfloat16
    assert layer.compressor is not None
    wide = (layer.moe.gate.data, layer.hc_attn.fn, layer.attention.sink, layer.compressor.wkv.data)
    assert {tensor.dtype for tensor in wide} == {torch.float32}
    ids = random_ids(20, 3)
    logits = model.forward(ids, model.new_cache(CacheFormats.TRAINED)).logits
    full = load(quantized_folder)
    wanted = full.forward(ids, full.new_cache(CacheFormats.TRAINED)).logits
    assert (logits - wanted).abs().mean() < 0.3 * wanted.std()


def test_progress_reaches_the_end(quantized_folder: Path) -> None:
    seen: list[LoadProgress] = []
    load(quantized_folder, progress=seen.append)
    assert [p.tensors_done for p in seen] == list(range(1, len(seen) + 1))
    assert seen[-1].bytes_done == seen[-1].bytes_total > 0
    assert seen[-1].tensors_total == len(seen)


# The kernel's high-water mark of this process's memory, reset just before: ru_maxrss would carry over from the parent.
MEASURE = """
import sys
from pathlib import Path
import torch
torch.set_num_threads(1)
from safetensors.torch import load_file
from workers.models.deepseek_v41 import loading
from workers.models.deepseek_v41.nano import NANO
from workers.models.deepseek_v41.config import DeepseekV41Config
from workers.models.safetensors_index import read_index

def status(key):
    line = next(l for l in Path("/proc/self/status").read_text().splitlines() if l.startswith(key + ":"))
    return int(line.split()[1]) * 1024

folder, how = Path(sys.argv[1]), sys.argv[2]
config = DeepseekV41Config.from_folder(folder)
matches = loading.check_checkpoint(read_index(folder), config, draft=True)
Path("/proc/self/clear_refs").write_text("5")
before = status("VmRSS")
if how == "whole":
    files = [load_file(f) for f in sorted(folder.glob("*.safetensors"))]
    held = [t.float() for tensors in files for t in tensors.values()]
    size = sum(t.nbytes for t in held)
else:
    weights = loading.load_weights(matches, loading.LoadOptions(keep_quantized=how == "kept"))
    size = sum(w.nbytes for w in weights.values())
print((status("VmHWM") - before) / size, size)
"""


@pytest.fixture(scope="module")
def heavy_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """About 130 MB once expanded, a third of it in one tensor: a second copy of anything would show."""
    from dataclasses import replace

    config = replace(TINY_QUANTIZED, vocab_size=40_000, hidden_size=256, moe_intermediate_size=512)
    folder = tmp_path_factory.mktemp("heavy")
    return write_tiny(folder, config, shards=2)


def measure(folder: Path, how: str) -> float:
    root = Path(__file__).parents[4]
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, str(folder), how], cwd=root, capture_output=True, text=True, check=True
    )
    return float(done.stdout.split()[0])


@pytest.mark.parametrize("how", ["expanded", "kept"])
def test_peak_memory_is_below_1_3_times_the_weights(heavy_folder: Path, how: str) -> None:
    assert 0.9 < measure(heavy_folder, how) < 1.3


def test_the_measure_sees_a_second_copy(heavy_folder: Path) -> None:
    assert measure(heavy_folder, "whole") > 1.3


def test_tiny_config_is_what_was_written(tiny_folder: Path) -> None:
    assert load(tiny_folder).config == TINY
