from __future__ import annotations

import pytest

from controlplane.telemetry import delivery


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A frame may take longer than a second where a busy machine runs the tests."""
    monkeypatch.setattr(delivery, "DEADLINE_S", 20.0)
