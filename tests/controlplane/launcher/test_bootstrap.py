"""The part that runs on any Python: what old ones are told, stamps, space, failures of pip and npm in words."""

from __future__ import annotations

import ast
import io
import subprocess
import sys
from pathlib import Path

import pytest

from controlplane.launcher import packages
from controlplane.launcher.environment import require_space
from controlplane.launcher.errors import LaunchError, from_os_error
from controlplane.launcher.logs import last_line, rotate
from controlplane.launcher.progress import Progress
from controlplane.launcher.tooling import failure
from tests.running import ROOT

BOOTSTRAP = ROOT / "controlplane" / "launcher" / "bootstrap.py"
STANDARD_ONLY = ("bootstrap", "environment", "frontend", "packages", "tooling", "progress", "errors")


def test_an_old_python_can_parse_it() -> None:
    tree = ast.parse(BOOTSTRAP.read_text(), feature_version=(3, 4))
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.JoinedStr | ast.AnnAssign | ast.NamedExpr)]
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.returns]


def test_an_old_python_gets_a_clear_answer(tmp_path: Path) -> None:
    pretend = (
        "import sys, runpy; sys.version_info = (3, 8, 18, 'final', 0); sys.version = '3.8.18 (default)';"
        f"runpy.run_path({str(BOOTSTRAP)!r}, run_name='__main__')"
    )
    result = subprocess.run(
        [sys.executable, "-c", pretend], env={"PATH": str(tmp_path)}, capture_output=True, text=True, check=False
    )
    assert result.returncode == 1
    assert result.stderr.splitlines()[0] == "error: Galley needs Python 3.11 or newer, and this is 3.8.18"


@pytest.mark.parametrize("name", STANDARD_ONLY)
def test_the_first_stage_needs_nothing_installed(name: str) -> None:
    tree = ast.parse((ROOT / "controlplane" / "launcher" / f"{name}.py").read_text())
    imported = {
        alias.name if isinstance(node, ast.Import) else node.module or ""
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    ours = {f"controlplane.launcher.{other}" for other in STANDARD_ONLY} | {"controlplane.launcher"}
    assert {module for module in imported if module.split(".")[0] not in sys.stdlib_module_names} <= ours


def test_no_space_is_said_before_anything_is_written(tmp_path: Path) -> None:
    require_space(tmp_path / "not" / "yet", 1)
    with pytest.raises(LaunchError, match="not enough disk space"):
        require_space(tmp_path / "not" / "yet", 10**18)
    assert "no space left" in str(from_os_error(OSError(28, "No space left on device")))


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("WARNING: Retrying after connection broken by 'NewConnectionError(...)'", "cannot be reached"),
        ("npm error code ENOTFOUND", "cannot be reached"),
        ("ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device", "no space left"),
        ("error: the store is full; remove a model", "installing failed: the store is full; remove a model"),
        ("CommandError: Conflicting migrations detected", "installing failed: Conflicting migrations detected"),
        ("ERROR: No matching distribution found for torch==2.13.0", "No matching distribution found for torch==2.13.0"),
    ],
)
def test_failures_of_tools_in_words(line: str, words: str) -> None:
    error = failure("installing failed", ["something", line, "the end"], Path("pip.log"))
    assert words in error.what
    assert "pip.log" in error.action


def test_a_changed_lock_asks_for_an_install(tmp_path: Path) -> None:
    venv = tmp_path / ".venv"
    (venv / "bin").mkdir(parents=True)
    (venv / "bin" / "python").touch()
    (venv / "lib" / "python3.11" / "site-packages" / "pip").mkdir(parents=True)
    lock = tmp_path / "requirements.lock"
    lock.write_text("django==5.2.19\n")
    (tmp_path / "requirements-dev.lock").write_text("django==5.2.19\nruff==0.17.6\n")
    assert not packages.is_current(venv, lock)
    packages._stamp(venv, lock).write_text(packages._digest(lock))
    assert packages.is_current(venv, lock)
    lock.write_text("django==5.2.20\n")
    assert not packages.is_current(venv, lock)


def test_progress_without_a_terminal_says_each_step_and_its_end() -> None:
    out = io.StringIO()
    progress = Progress(out)
    with progress.step("Packages") as step:
        step.update("3 of 9")
    with pytest.raises(LaunchError), progress.step("Pages"):
        raise LaunchError("broken", "mend it")
    lines = out.getvalue().splitlines()
    assert lines[0] == "  …  Packages"
    assert lines[1].startswith("  ✓  Packages: 3 of 9 (")
    assert lines[-1].startswith("  ✗  Pages (")


def test_logs_are_bounded(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    (tmp_path / "workers").mkdir()
    (tmp_path / "workers" / "w.log").write_text("a worker's log is its agent's\n" * 100)
    writer = log.open("a")
    for generation in ("first", "second", "third"):
        writer.write(f"{generation}\n" * 100)
        writer.flush()
        assert rotate(tmp_path, max_bytes=100) == [log]
    writer.write("after\n")
    writer.flush()
    assert log.read_text() == "after\n"
    assert last_line(log) == "after"
    assert "third" in log.with_name("a.log.1").read_text()
    assert "second" in log.with_name("a.log.2").read_text()
    assert sorted(path.name for path in tmp_path.rglob("*.log*")) == ["a.log", "a.log.1", "a.log.2", "w.log"]
    writer.close()
