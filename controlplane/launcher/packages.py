"""`.venv/` and the packages of a lock file, by pip (so its configuration applies). Standard library only."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
from pathlib import Path

from controlplane.launcher.errors import LaunchError
from controlplane.launcher.progress import Step
from controlplane.launcher.tooling import failure, pip, run_logged

_PIN = re.compile(r"^[A-Za-z0-9][\w.\-\[\]]*==")


def is_current(venv: Path, lock: Path) -> bool:
    """Whether the packages of `lock` were installed; those of the development lock contain the others."""
    if not venv_works(venv):
        return False
    accepted = {lock, lock.with_name("requirements-dev.lock")}
    return any(_stamp(venv, each).exists() and _stamp(venv, each).read_text() == _digest(each) for each in accepted)


def venv_works(venv: Path) -> bool:
    """Whether there is an environment with pip, whose interpreter is still installed, and still the same version."""
    python = venv / "bin" / "python"
    named = re.search(r"python(3\.\d+)$", os.path.realpath(python))  # after an upgrade of the system: another one
    version = named[1] if named else "3*"
    return python.exists() and any(venv.glob(f"lib/python{version}/site-packages/pip"))


def create_venv(venv: Path) -> None:
    """With this interpreter. Raises LaunchError."""
    result = subprocess.run(
        [sys.executable, "-m", "venv", "--clear", str(venv)], capture_output=True, text=True, check=False
    )
    if result.returncode != 0:
        lines = (result.stdout + result.stderr).strip().splitlines()
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        raise LaunchError(
            f"cannot create {venv}: {lines[-1] if lines else 'python -m venv failed'}",
            f"Python's venv module must be installed (Debian and Ubuntu: apt-get install python{version}-venv).",
        )


def install(venv: Path, lock: Path, step: Step) -> None:
    """Install every pin of `lock` that applies here. Raises LaunchError."""
    total = sum(1 for line in lock.read_text().splitlines() if _PIN.match(line) and _applies(line))
    seen = 0

    def watch(line: str) -> None:
        nonlocal seen
        text = line.strip()
        if text.startswith(("Collecting", "Requirement already satisfied")):
            seen += 1
            step.update(f"{min(seen, total)} of {total} found")
        elif text.startswith("Downloading"):
            step.update(f"{min(seen, total)} of {total} found, {text[0].lower()}{text[1:]}")
        elif text.startswith("Progress "):  # pip's raw progress bar: Progress DONE of TOTAL, in bytes
            done, _, size = text.removeprefix("Progress ").partition(" of ")
            if size.isdigit() and int(size) > 20e6:
                step.update(f"{min(seen, total)} of {total} found, {int(done) / 1e6:.0f} of {int(size) / 1e6:.0f} MB")
        elif text.startswith("Installing collected packages"):
            step.update(f"installing {text.count(',') + 1}")

    bar = "raw" if _pip_major(venv) >= 25 else "off"
    log = venv / "pip.log"
    status, tail = run_logged(
        [*pip(venv), "install", "--progress-bar", bar, "--requirement", str(lock)],
        log=log,
        cwd=lock.parent,
        each_line=watch,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    if status != 0:
        raise failure("installing the Python packages failed", tail, log)
    step.update(f"{total} packages")
    _stamp(venv, lock).write_text(_digest(lock))


def _applies(line: str) -> bool:
    """A rough reading of the marker, for the count in the progress line only."""
    return "sys_platform == 'win32'" not in line and "'emscripten'" not in line.replace("!= 'emscripten'", "")


def _pip_major(venv: Path) -> int:
    for info in venv.glob("lib/python3*/site-packages/pip-*.dist-info"):
        return int(info.name.removeprefix("pip-").split(".")[0])
    return 0


def _stamp(venv: Path, lock: Path) -> Path:
    return venv / f".{lock.name}.installed"


def _digest(lock: Path) -> str:
    return hashlib.sha256(lock.read_bytes()).hexdigest()
