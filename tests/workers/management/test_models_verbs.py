"""`manage.py models add|list`, as processes: what a user sees."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.workers.models.llama.factories import make_folder

ROOT = Path(__file__).resolve().parents[3]


def manage(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "manage.py", "models", *arguments],
        cwd=ROOT,
        env=os.environ | {"GALLEY_HOME": str(home)},
        text=True,
        capture_output=True,
        timeout=120,
        check=False,
    )


def test_adding_a_folder_listing_it_and_adding_it_again(tmp_path: Path) -> None:
    make_folder(tmp_path / "source")
    home = tmp_path / "home"
    added = manage(home, "add", "tiny", str(tmp_path / "source"))
    assert added.returncode == 0, added.stderr
    assert "million parameters" in added.stdout
    assert "copying model.safetensors" in added.stdout
    (listed,) = json.loads(manage(home, "list", "--json").stdout)
    assert listed["name"] == "tiny"
    again = manage(home, "add", "tiny", str(tmp_path / "source"))
    assert again.returncode == 1
    assert "already in the store" in again.stderr
    assert "Traceback" not in again.stderr


def test_a_name_nobody_knows(tmp_path: Path) -> None:
    result = manage(tmp_path, "add", "gpt-5")
    assert result.returncode == 1
    assert "smollm2-135m-instruct" in result.stderr
    assert "Traceback" not in result.stderr


def test_an_empty_store_says_how_to_fill_it(tmp_path: Path) -> None:
    assert "models add" in manage(tmp_path, "list").stdout
