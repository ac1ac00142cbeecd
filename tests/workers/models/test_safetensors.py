"""Headers, shards and tensors of safetensors checkpoints, and what a damaged one says."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from workers.models.safetensors_index import INDEX_NAME, CheckpointError, read_header, read_index
from workers.models.safetensors_stream import LoadProgress, SafetensorsStream, stream_tensors


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    parts = {
        "a.safetensors": {"x": torch.randn(3, 4), "e": torch.empty(0, 5), "s": torch.tensor(3)},
        "b.safetensors": {"y": torch.randn(7).bfloat16(), "f": torch.ones(2, 2).to(torch.float8_e4m3fn)},
    }
    for file, tensors in parts.items():
        save_file(tensors, tmp_path / file, metadata={"from": file})
    weight_map = {name: file for file, tensors in parts.items() for name in tensors}
    (tmp_path / INDEX_NAME).write_text(json.dumps({"weight_map": weight_map}))
    return tmp_path


def test_tensors_are_equal_to_the_library(sharded: Path) -> None:
    index = read_index(sharded)
    wanted = load_file(sharded / "a.safetensors") | load_file(sharded / "b.safetensors")
    seen: list[LoadProgress] = []
    got = dict(stream_tensors(index, seen.append))
    assert got.keys() == wanted.keys()
    for name, tensor in wanted.items():
        assert got[name].dtype == tensor.dtype
        assert torch.equal(got[name].float(), tensor.float())
    assert index.elements == 3 * 4 + 1 + 7 + 4
    assert seen[-1].bytes_done == seen[-1].bytes_total == index.nbytes


def test_runs_of_rows(sharded: Path) -> None:
    index = read_index(sharded)
    with SafetensorsStream() as stream:
        whole = stream.read(index["x"])
        assert torch.equal(stream.read_rows(index["x"], 1, 3), whole[1:3])
        assert stream.read_rows(index["x"], 2, 2).shape == (0, 4)
        with pytest.raises(ValueError, match="which has 3"):
            stream.read_rows(index["x"], 2, 4)


def test_model_safetensors_counts_alone_without_an_index(sharded: Path) -> None:
    (sharded / INDEX_NAME).unlink()
    assert len(read_index(sharded)) == 5
    (sharded / "a.safetensors").rename(sharded / "model.safetensors")
    assert set(read_index(sharded).tensors) == {"x", "e", "s"}
    assert set(read_index(sharded / "b.safetensors").tensors) == {"y", "f"}


def test_index_against_shards(sharded: Path) -> None:
    listed = {"x": "a.safetensors", "y": "a.safetensors", "gone": "b.safetensors"}
    (sharded / INDEX_NAME).write_text(json.dumps({"weight_map": listed}))
    index = read_index(sharded)
    assert index.absent == ("gone",)
    assert set(index.unlisted) == {"y", "e", "s", "f"}


@pytest.mark.parametrize(
    ("weight_map", "message"),
    [
        ({"x": "c.safetensors"}, "shard c.safetensors is missing"),
        ({"x": "../a.safetensors"}, "outside the folder"),
        (None, "not an index file"),
    ],
)
def test_bad_index(sharded: Path, weight_map: object, message: str) -> None:
    (sharded / INDEX_NAME).write_text(json.dumps({"weight_map": weight_map}))
    with pytest.raises(CheckpointError, match=message):
        read_index(sharded)


def test_one_name_twice(sharded: Path) -> None:
    (sharded / INDEX_NAME).unlink()
    save_file({"x": torch.ones(1)}, sharded / "c.safetensors")
    with pytest.raises(CheckpointError, match=r"tensor x is in both a.safetensors and c.safetensors"):
        read_index(sharded)


def test_short_files(sharded: Path) -> None:
    file = sharded / "a.safetensors"
    with file.open("r+b") as stream:
        stream.truncate(file.stat().st_size - 4)
    index = read_index(sharded)
    assert [(s.file.name, s.missing_bytes) for s in index.short_files()] == [("a.safetensors", 4)]
    with pytest.raises(CheckpointError, match="4 bytes of tensor data are missing"):
        index.require_payloads()
    with pytest.raises(CheckpointError, match="ends inside tensor"):
        list(stream_tensors(index))


def header(entry: object) -> bytes:
    raw = json.dumps(entry).encode()
    return len(raw).to_bytes(8, "little") + raw


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "no header length"),
        (b"\xff" * 64, "no header length"),
        (header({})[:9], "ends inside its header"),
        (b"\x04" + b"\0" * 7 + b"nope", "the header is damaged"),
        (header([]), "the header is damaged"),
        (header({"x": {"dtype": "F32"}}), "the header is damaged"),
        (header({"x": {"dtype": "Q9", "shape": [1], "data_offsets": [0, 4]}}), "tensor x has the unknown dtype 'Q9'"),
        (header({"x": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}), "cannot fill 4 bytes"),
        (header({"x": {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}}), "tensor x starts at byte"),
        (header({"x": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}}), "tensor x has the shape"),
    ],
)
def test_damaged_headers(tmp_path: Path, content: bytes, message: str) -> None:
    file = tmp_path / "model.safetensors"
    file.write_bytes(content)
    with pytest.raises(CheckpointError, match=message):
        read_header(file)


def test_no_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"holds no .safetensors file"):
        read_index(tmp_path)
    with pytest.raises(CheckpointError, match="no such folder"):
        read_index(tmp_path / "nothing")
