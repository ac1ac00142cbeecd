"""`make lock`: resolve pyproject.toml into requirements.lock and requirements-dev.lock, for every supported platform.

The result names only what plain PyPI metadata resolves. CUDA libraries are left out on purpose: torch's own metadata
asks for them where the CUDA build is installed, and a CPU build of the same version (by pip's configuration) has none.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LEFT_TO_TORCH = ("nvidia-", "cuda-")
_OPTIONS = ("--quiet", "--universal", "--python-version", "3.11", "--no-header", "--no-annotate")
HEADER = "# Made by `make lock` from pyproject.toml: do not edit.\n"


def resolve(output: Path, *options: str) -> str:
    subprocess.run(
        [
            sys.executable,
            "-m",
            "uv",
            "pip",
            "compile",
            *_OPTIONS,
            "--output-file",
            str(output),
            *options,
            "pyproject.toml",
        ],
        cwd=ROOT,
        check=True,
        stdout=subprocess.DEVNULL,
    )
    pins = [line for line in output.read_text().splitlines() if not line.startswith(LEFT_TO_TORCH)]
    wrong = [pin for pin in pins if "://" in pin or "+" in pin.split(";")[0] or " @ " in pin]
    if wrong:
        raise SystemExit(f"not resolvable from plain PyPI metadata: {wrong}")
    return HEADER + "\n".join(pins) + "\n"


def main() -> None:
    upgrade = sys.argv[1:2] == ["--upgrade"]
    with tempfile.TemporaryDirectory() as folder:
        runtime = Path(folder) / "requirements.lock"
        develop = Path(folder) / "requirements-dev.lock"
        if not upgrade:  # keep what is locked unless pyproject.toml asks for something else
            for path in (runtime, develop):
                known = ROOT / path.name
                if known.exists():
                    path.write_text(known.read_text())
        (ROOT / runtime.name).write_text(resolve(runtime))
        (ROOT / develop.name).write_text(resolve(develop, "--extra", "dev", "--constraint", str(runtime)))
    print("requirements.lock and requirements-dev.lock are up to date")


if __name__ == "__main__":
    main()
