from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
import torch

from workers.models.add_package import WEIGHTS_NAME
from workers.models.gguf_file import GGUFError, GGUFFile
from workers.models.gguf_index import INDEX_NAME, GGUFWeights, build_index, dequantise, write_index
from workers.models.llama.config import LlamaConfig

FORMATS = ["Q4_0", "Q4_1", "Q5_1", "Q8_0", "F32", "F16", "BF16"]


@pytest.mark.parametrize("kind", FORMATS)
def test_values_equal_the_gguf_package(kind: str) -> None:
    values = np.random.default_rng(0).standard_normal((6, 96)).astype(np.float32)
    stored = gguf.quants.quantize(values, gguf.GGMLQuantizationType[kind])
    expected = gguf.quants.dequantize(stored, gguf.GGMLQuantizationType[kind]).reshape(-1)
    raw = np.ascontiguousarray(stored).view(np.uint8).reshape(-1)
    assert torch.equal(dequantise(raw, kind), torch.from_numpy(np.asarray(expected, dtype=np.float32)))


@pytest.fixture(scope="module")
def file(smollm2_path: Path) -> GGUFFile:
    return GGUFFile(smollm2_path / WEIGHTS_NAME)


def test_the_index_finds_what_the_file_holds(smollm2_path: Path, file: GGUFFile) -> None:
    weights = GGUFWeights(smollm2_path, WEIGHTS_NAME)
    assert set(weights.index.tensors) == set(file)
    for name in ("token_embd.weight", "blk.3.attn_q.weight", "blk.29.ffn_down.weight", "output_norm.weight"):
        assert torch.equal(weights.tensor(name), torch.from_numpy(file.tensor(name)))
    with pytest.raises(GGUFError, match=r"blk\.30\.attn_q\.weight is missing"):
        weights.tensor("blk.30.attn_q.weight")


def test_a_cut_off_file_is_noticed(smollm2_path: Path, file: GGUFFile, tmp_path: Path) -> None:
    write_index(tmp_path, build_index(file, LlamaConfig.from_gguf(file)))
    (tmp_path / WEIGHTS_NAME).write_bytes((smollm2_path / WEIGHTS_NAME).read_bytes()[:-1000])
    weights = GGUFWeights(tmp_path, WEIGHTS_NAME)
    with pytest.raises(GGUFError, match=r"end inside tensor output_norm\.weight"):
        weights.tensor("output_norm.weight")


def test_a_damaged_index_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / INDEX_NAME).write_text("{}")
    with pytest.raises(GGUFError, match="remove the model and add it again"):
        GGUFWeights(tmp_path, WEIGHTS_NAME)


def test_something_else_is_no_gguf_file(tmp_path: Path) -> None:
    (tmp_path / "x.gguf").write_bytes(b"not a model" * 10)
    with pytest.raises(GGUFError, match="not a readable GGUF file"):
        GGUFFile(tmp_path / "x.gguf")
