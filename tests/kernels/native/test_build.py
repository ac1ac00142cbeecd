from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from kernels import native
from kernels.native import build

needs_compiler = pytest.mark.skipif(not any(map(shutil.which, build.COMPILERS)), reason="no C++ compiler here")


@pytest.fixture
def no_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("CXX", "a-compiler-that-is-not-there")
    monkeypatch.setenv("GALLEY_KERNELS_CACHE", str(tmp_path / "kernels"))
    native.library.cache_clear()
    yield
    monkeypatch.undo()
    native.library.cache_clear()


@pytest.mark.usefixtures("no_compiler")
def test_without_a_compiler_torch_computes() -> None:
    assert native.path() == "eager"


@pytest.mark.usefixtures("no_compiler")
def test_what_was_asked_for_by_name_is_not_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GALLEY_KERNELS", "native")
    with pytest.raises(build.BuildError, match="a-compiler-that-is-not-there"):
        native.library()


@pytest.mark.usefixtures("no_compiler")
def test_an_unknown_choice_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GALLEY_KERNELS", "fast")
    with pytest.raises(ValueError, match="GALLEY_KERNELS is 'fast': one of auto, native, eager"):
        native.library()


def test_code_is_not_loaded_from_a_folder_that_others_write_to(tmp_path: Path) -> None:
    folder = tmp_path / "kernels"
    folder.mkdir()
    folder.chmod(0o777)
    with pytest.raises(build.BuildError, match="can be written by others"):
        build.load(folder)


@needs_compiler
def test_a_source_that_does_not_compile_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "broken" / "native.cpp"
    broken.parent.mkdir()
    broken.write_text("this is not C++\n")
    monkeypatch.setattr(build, "SOURCES", (broken,))
    folder = tmp_path / "kernels"
    with pytest.raises(build.BuildError, match=r"failed: .*broken"):
        build.load(folder)
    assert [path.suffix for path in folder.iterdir()] == [".lock"]


@needs_compiler
def test_the_library_is_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "small" / "native.cpp"
    source.parent.mkdir()
    source.write_text('extern "C" int answer() { return 42; }\n')
    monkeypatch.setattr(build, "SOURCES", (source,))
    folder = tmp_path / "kernels"
    assert build.load(folder).answer() == 42
    (library,) = folder.glob("*.so")
    before = library.stat().st_mtime_ns
    build.load(folder)
    assert library.stat().st_mtime_ns == before
