from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from kernels import native
from kernels.attention import native as attention
from kernels.linear import native as linear


@pytest.fixture(params=["native", "eager"])
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Both ways through the kernels; the native one where a compiler is there."""
    if request.param == "native" and native.library() is None:
        pytest.skip("no native kernels on this machine")
    caches = (native.library, linear._function, attention._functions)
    monkeypatch.setenv("GALLEY_KERNELS", request.param)
    for cache in caches:
        cache.cache_clear()
    yield request.param
    monkeypatch.undo()
    for cache in caches:
        cache.cache_clear()
