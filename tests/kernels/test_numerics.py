"""The rounding of every kernel is tied to `NUMERICS_REVISION`, which is part of the identity of cached blocks."""

from __future__ import annotations

import pytest

from kernels import NUMERICS_REVISION
from tests.kernels import golden

RECORD = "record what each way gives now: python -m tests.kernels.golden, with GALLEY_KERNELS=native and =eager"


def test_results_are_those_of_the_revision(path: str) -> None:
    recorded = golden.recorded()
    assert recorded["revision"] == NUMERICS_REVISION, f"the revision was raised: {RECORD}"
    wanted = recorded["machines"].get(golden.machine())
    if wanted is None:
        pytest.skip(f"nothing was recorded on a machine like this one ({golden.machine()})")
    assert golden.digests() == wanted, f"the {path} kernels round differently: raise NUMERICS_REVISION and {RECORD}"


def test_a_change_of_rounding_shows(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The digests see a last bit."""
    before = golden.digests()
    rounded = golden.q.round_rows
    monkeypatch.setattr(golden.q, "round_rows", lambda values, f: rounded(values, f) * (1 + 2**-23))
    changed = {name for name, digest in golden.digests().items() if digest != before[name]}
    assert changed == {"rows"}, path
