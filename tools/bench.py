"""`make bench`: every benchmark in turn, each printing its table. `--json FOLDER` keeps the figures of each.

A benchmark that needs an input (a trace) or many minutes (10,000 requests) is run by hand:
`python -m benchmarks.trace_replay --help`, `python -m benchmarks.ledger_stress --help`.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NEED_INPUT = frozenset({"trace_replay", "ledger_stress"})


def _runs(module: Path) -> bool:
    """Whether it is a benchmark, and not a module that benchmarks share."""
    return '__name__ == "__main__"' in module.read_text()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, metavar="FOLDER")
    parser.add_argument("names", nargs="*", help="benchmarks to run; default: all")
    options = parser.parse_args()
    scripts = [path for path in sorted((ROOT / "benchmarks").glob("*.py")) if _runs(path)]
    wanted = set(options.names) or {path.stem for path in scripts} - NEED_INPUT
    scripts = [path for path in scripts if path.stem in wanted]
    if not scripts:
        print("no such benchmark")
        return 2
    failed = []
    for script in scripts:
        print(f"\n=== {script.stem}", flush=True)
        extra = []
        if options.json is not None:
            options.json.mkdir(parents=True, exist_ok=True)
            extra = ["--json", str(options.json.resolve() / f"{script.stem}.json")]
        module = f"benchmarks.{script.stem}"
        if subprocess.run([sys.executable, "-m", module, *extra], cwd=ROOT, check=False).returncode != 0:
            failed.append(script.stem)
    if failed:
        print(f"\nfailed: {', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
