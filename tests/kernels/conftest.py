from __future__ import annotations

import functools
import importlib
from collections.abc import Iterator
from typing import Any

import pytest

from kernels import native
from kernels.native.build import SOURCES

_MODULES = [importlib.import_module(f"kernels.{source.parent.name}.native") for source in SOURCES]


def _forget_the_choice() -> None:
    """What the kernels' modules keep of it, whichever modules there are."""
    native.library.cache_clear()
    for module in _MODULES:
        for value in vars(module).values():
            if isinstance(value, functools._lru_cache_wrapper):
                value.cache_clear()


@pytest.fixture(params=["native", "eager"])
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Both ways through the kernels; the native one where a compiler is there."""
    if request.param == "native" and native.library() is None:
        pytest.skip("no native kernels on this machine")
    monkeypatch.setenv("GALLEY_KERNELS", request.param)
    _forget_the_choice()
    yield request.param
    monkeypatch.undo()
    _forget_the_choice()
