from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from workers.kvstore.extent import ExtentId
from workers.kvstore.files import Fsync, Root, RootForeign, RootMissing


@pytest.fixture
def root(tmp_path: Path) -> Root:
    made = Root(tmp_path / "store")
    made.create()
    return made


def test_a_store_is_made_once(root: Root) -> None:
    first = root.store_id()
    assert root.create() == first
    root.check(first)
    with pytest.raises(RootForeign):
        root.check("other")


def test_an_empty_mount_point_is_no_store(tmp_path: Path) -> None:
    with pytest.raises(RootMissing):
        Root(tmp_path).store_id()
    with pytest.raises(RootMissing):
        Root(tmp_path / "nowhere").store_id()


@pytest.mark.parametrize("fsync", list(Fsync))
def test_files_are_whole_and_private(tmp_path: Path, fsync: Fsync) -> None:
    root = Root(tmp_path / "store", fsync=fsync, now=lambda: 1000.0)
    root.create()
    extent = ExtentId(b"\xab" * 16)
    assert root.write(extent, b"head", [b"one", memoryview(bytearray(b"two")), b""]) == 10
    path = root.where(extent)
    assert path.read_bytes() == b"headonetwo"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.stat().st_mtime == 1000.0
    folders = [root.path, root.extents, root.temporary, path.parent]
    assert {stat.S_IMODE(folder.stat().st_mode) for folder in folders} == {0o700}
    assert list(root.walk()) == [(extent, 1000.0)]
    assert not list(root.temporary.iterdir())


def test_more_blocks_than_one_call_takes(root: Root) -> None:
    extent = ExtentId(bytes(16))
    blocks = [bytes([number % 256]) * 3 for number in range(2000)]
    assert root.write(extent, b"", blocks) == 6000
    assert root.where(extent).read_bytes() == b"".join(blocks)


def test_a_failed_write_leaves_nothing(root: Root) -> None:
    with pytest.raises(TypeError):
        root.write(ExtentId(bytes(16)), b"head", [b"one", None])  # type: ignore[list-item]
    assert not list(root.temporary.iterdir())
    assert not list(root.walk())


def test_walking_passes_over_foreign_names(root: Root) -> None:
    (root.extents / "abc").mkdir()
    for name in ("README", "00.kvx", "zz" * 16 + ".kvx", "00" * 16 + ".tmp"):
        (root.extents / "abc" / name).touch()
    (root.extents / "loose").touch()
    assert list(root.walk()) == []


def test_old_temporary_files_go_and_young_ones_stay(root: Root) -> None:
    (root.temporary / "left-behind").touch()
    assert root.clean_temporary(older_than_s=3600) == 0
    assert root.clean_temporary(older_than_s=-1) == 1
    assert not list(root.temporary.iterdir())


def test_a_link_is_not_followed(root: Root, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("not an extent")
    path = root.where(ExtentId(bytes(16)))
    path.parent.mkdir()
    path.symlink_to(secret)
    with pytest.raises(OSError, match="symbolic"):
        root.open(ExtentId(bytes(16)))


def test_small_files_are_replaced_whole(root: Root) -> None:
    root.write_small("policy.json", b"one", replace=True)
    root.write_small("policy.json", b"two", replace=True)
    assert root.read_small("policy.json") == b"two"
    root.write_small("policy.json", b"three", replace=False)
    assert root.read_small("policy.json") == b"two"
    assert root.read_small("other") is None


def test_the_disk_has_a_size(root: Root) -> None:
    assert 0 < root.free_bytes() <= root.disk_bytes()
    assert os.path.isdir(root.path)
