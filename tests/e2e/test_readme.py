"""The README's snippet, run as it stands there, streams English."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.reporting import Report
from tests.running import ROOT, System, clean_environment

pytestmark = pytest.mark.e2e

COMMON = set(
    "a an and are as at be by can for from has have i in is it its of on or that the this to was with you".split()
)


def snippet() -> str:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    return next(block for block in blocks if "openai" in block)


def test_the_snippet_streams_english(system: System, tmp_path: Path, report: Report) -> None:
    (tmp_path / "var").symlink_to(system.home)
    result = subprocess.run(
        [sys.executable, "-c", snippet()],
        cwd=tmp_path,
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    report(f"the README's snippet: {' '.join(result.stdout.split())[:200]}")
    words = re.findall(r"[a-z']+", result.stdout.lower())
    assert len(words) >= 15, result.stdout
    assert sum(word in COMMON for word in words) / len(words) > 0.2, result.stdout
