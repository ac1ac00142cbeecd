"""`make test`: every check in one go, and the minutes of each part. `tools/test.py [PART...]` runs some of them."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tools.browser import ensure_chromium  # noqa: E402


@dataclass(frozen=True)
class Part:
    name: str
    budget_minutes: float
    """On two cores, when everything is built."""
    run: Callable[[], bool]


def command(*argv: str, cwd: Path = ROOT, **environment: str) -> bool:
    """Run a tool with our output and more `environment`; whether it was content."""
    print(f"\n$ {' '.join(argv)}", flush=True)
    env = {**os.environ, **environment}
    return subprocess.run(argv, cwd=cwd, env=env, stdin=subprocess.DEVNULL, check=False).returncode == 0


def python(*argv: str, **environment: str) -> bool:
    return command(sys.executable, *argv, **environment)


def pytest(*argv: str, **environment: str) -> bool:
    """A part that collects nothing has failed too: a marker is wrong."""
    return python("-m", "pytest", "-q", "--durations=15", *argv, **environment)


def npm(*argv: str) -> bool:
    from controlplane.launcher import frontend
    from controlplane.launcher.progress import Progress

    node = frontend.system_node() or frontend.packaged_node(ROOT / ".venv", Progress())
    os.environ["PATH"] = f"{node.folder}{os.pathsep}{os.environ.get('PATH', '')}"
    return command(*node.npm, "run", *argv, cwd=ROOT / "dashboard" / "frontend")


def static() -> bool:
    results = [
        python("-m", "ruff", "check"),
        python("-m", "ruff", "format", "--check"),
        python("-m", "mypy"),
        command(str(Path(sys.executable).with_name("lint-imports"))),
        npm("check"),
    ]
    return all(results)


_SIDE_BY_SIDE = ("-n", str(os.cpu_count() or 1), "--dist", "loadfile")
"""Unit tests need no services: a process per core."""


def unit() -> bool:
    # Threads of several processes would wait for each other.
    one_thread = {"OMP_NUM_THREADS": "1"}
    results = [
        pytest("-m", "not integration and not e2e", "--ignore=tests/kernels", *_SIDE_BY_SIDE, "tests", **one_thread),
        npm("test"),
    ]
    return all(results)


def kernels() -> bool:
    return pytest("-m", "not integration and not e2e", "tests/kernels")


def integration() -> bool:
    return pytest("-m", "integration and not e2e", "tests")


def e2e() -> bool:
    if ensure_chromium() is None:
        print("no chromium: the browser tests are skipped", flush=True)
    return pytest("-m", "e2e", "tests")


PARTS = (
    Part("static", 4, static),
    Part("unit", 6, unit),
    Part("kernels", 8, kernels),
    Part("integration", 8, integration),
    Part("e2e", 9, e2e),
)
SETUP_BUDGET_MINUTES = 5.0


def main(wanted: list[str]) -> int:
    unknown = set(wanted) - {part.name for part in PARTS}
    if unknown:
        print(f"unknown part: {', '.join(sorted(unknown))}; there are {', '.join(part.name for part in PARTS)}")
        return 2
    rows = []
    started = time.monotonic()
    if not wanted or "e2e" in wanted:
        ensure_chromium()
    setup = float(os.environ.pop("SETUP_SECONDS", "0")) + time.monotonic() - started
    rows.append(("set-up", setup / 60, SETUP_BUDGET_MINUTES, True))
    for part in PARTS:
        if wanted and part.name not in wanted:
            continue
        print(f"\n=== {part.name}", flush=True)
        started = time.monotonic()
        passed = part.run()
        rows.append((part.name, (time.monotonic() - started) / 60, part.budget_minutes, passed))
    print(f"\n{'part':<12} {'minutes':>8} {'budget':>7}  result")
    for name, minutes, budget, passed in rows:
        print(f"{name:<12} {minutes:>8.1f} {budget:>7.0f}  {'passed' if passed else 'FAILED'}")
    print(f"{'together':<12} {sum(row[1] for row in rows):>8.1f} {sum(row[2] for row in rows):>7.0f}", flush=True)
    return 0 if all(row[3] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
