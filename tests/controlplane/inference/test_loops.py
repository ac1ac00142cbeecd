from __future__ import annotations

import logging

import pytest

from controlplane.inference.loops import PeriodicLoop


async def test_a_loop_survives_and_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    answers = [OSError("away"), OSError("away"), None, OSError("again")]

    async def step() -> None:
        answer = answers.pop(0)
        if answer is not None:
            raise answer

    loop = PeriodicLoop("test", 1.0, step)
    with caplog.at_level(logging.WARNING):
        await loop.turn()
        await loop.turn()
    assert len(caplog.records) == 1
    assert (loop.failures, "away" in loop.problem) == (2, True)
    await loop.turn()
    assert loop.problem == ""
    await loop.turn()
    assert "again" in loop.problem
    assert loop.age_s < 60
