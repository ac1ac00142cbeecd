"""Goldens (outside the repository) and tiny models."""

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.workers.models.deepseek_v41.factories import TINY_QUANTIZED, write_tiny
from workers.models.deepseek_v41.formats import CacheFormats
from workers.models.deepseek_v41.loading import LoadOptions, load
from workers.models.deepseek_v41.model import DeepseekV41

REPOSITORY = Path(__file__).parents[4]


@dataclass(frozen=True)
class Golden:
    folder: Path
    about: dict[str, Any]
    tensors: dict[str, torch.Tensor]
    model: DeepseekV41
    formats: CacheFormats

    @property
    def tolerance(self) -> float:
        return float(self.about["tolerance"]["logits"])

    def worst(self, logits: torch.Tensor, key: str) -> float:
        """The largest difference to a golden over the rows that its rules let us compare."""
        stable = self.tensors.get(key.replace(".logits", ".stable_rows"))
        difference = (logits - self.tensors[key]).abs()
        return float((difference if stable is None else difference[stable]).max())


def golden_folder(name: str) -> Path:
    root = Path(os.environ.get("GALLEY_GOLDEN") or REPOSITORY.parent / "shared" / "golden")
    folder = root / name
    if not folder.is_dir():
        reason = f"no golden checkpoint at {folder}; GALLEY_GOLDEN names the folder that holds it"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    return folder


def _golden(name: str) -> Golden:
    folder = golden_folder(name)
    about = json.loads((folder / "golden.json").read_text())
    tensors = load_file(folder / "golden.safetensors")
    return Golden(folder, about, tensors, load(folder), CacheFormats(about["cache_formats"]))


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> Iterator[None]:
    """Tiny tensors: more threads only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def golden_fp32() -> Golden:
    return _golden("v41-tiny-fp32")


@pytest.fixture(scope="session")
def golden_quantised() -> Golden:
    return _golden("v41-tiny-quantised")


@pytest.fixture(scope="session", params=["v41-tiny-fp32", "v41-tiny-quantised"])
def golden(request: pytest.FixtureRequest) -> Golden:
    fixture = "golden_fp32" if request.param == "v41-tiny-fp32" else "golden_quantised"
    result: Golden = request.getfixturevalue(fixture)
    return result


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def quantized_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("tiny-quantized"), TINY_QUANTIZED, shards=3)


@pytest.fixture(scope="session")
def model(tiny_folder: Path) -> DeepseekV41:
    """In float64, where two ways to the same numbers agree to 1e-9 and no cache code sits on a rounding edge."""
    return load(tiny_folder, LoadOptions(dtype=torch.float64))
