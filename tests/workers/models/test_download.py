"""Fetching through pip, against an index that is a folder on disk, and against none."""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path

import pytest

from workers.models.download import download_wheel
from workers.models.store import StoreError


def make_wheel(folder: Path) -> str:
    """A wheel that pip accepts; its SHA-256."""
    folder.mkdir()
    path = folder / "galley_probe-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        metadata = "Metadata-Version: 2.1\nName: galley-probe\nVersion: 1.0\n"
        archive.writestr("galley_probe-1.0.dist-info/METADATA", metadata)
        archive.writestr("galley_probe-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr("galley_probe-1.0.dist-info/RECORD", "")
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture
def target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "links"))
    folder = tmp_path / "target"
    folder.mkdir()
    return folder


def test_the_wheel_that_was_meant(tmp_path: Path, target: Path) -> None:
    digest = make_wheel(tmp_path / "links")
    assert download_wheel("galley-probe==1.0", digest, target, None).name == "galley_probe-1.0-py3-none-any.whl"


def test_another_content_under_the_same_name_is_refused(tmp_path: Path, target: Path) -> None:
    make_wheel(tmp_path / "links")
    with pytest.raises(StoreError, match="the package index served something else"):
        download_wheel("galley-probe==1.0", "0" * 64, target, None)


def test_a_package_that_is_not_there(tmp_path: Path, target: Path) -> None:
    make_wheel(tmp_path / "links")
    with pytest.raises(StoreError, match="does not have galley-probe==2"):
        download_wheel("galley-probe==2.0", "0" * 64, target, None)


def test_no_network(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", "")
    with pytest.raises(StoreError, match="no connection to the package index"):
        download_wheel("galley-probe==1.0", "0" * 64, target, None)
