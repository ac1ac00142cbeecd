"""What every benchmark shares: arguments, the machine it ran on, interleaved pairs, one table, JSON.

A comparison runs its two sides alternately, A B A B ..., at least ten pairs of them, so that whatever else the
machine does hits both. What is reported is the median of the pairs' ratios with the quartiles around it, beside
both medians.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path

import psutil
import torch

PAIRS = 10
_PACKAGES = ("torch", "transformers", "numpy", "tokenizers")

Work = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two sides of one row. Seconds; `ratio` is `peer / ours`: above 1, ours is faster."""

    ours_s: float
    peer_s: float
    ratio: float
    ratio_low: float
    ratio_high: float
    pairs: int


def seconds(work: Work) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def compare(ours: Work, peer: Work, *, pairs: int = PAIRS, warm_up: int = 1, before: Work | None = None) -> Comparison:
    """Interleaved pairs; ratios are taken within a pair. Quartiles are the spread. `before` runs, untimed, ahead of
    each side (to drop caches, say)."""
    if pairs < PAIRS:
        raise ValueError(f"a comparison takes at least {PAIRS} pairs")
    for _ in range(warm_up):
        ours()
        peer()
    times: list[tuple[float, float]] = []
    for _ in range(pairs):
        pair = []
        for side in (ours, peer):
            if before is not None:
                before()
            pair.append(seconds(side))
        times.append((pair[0], pair[1]))
    ratios = [b / a for a, b in times]
    low, middle, high = statistics.quantiles(ratios, n=4)
    return Comparison(
        ours_s=statistics.median(a for a, _ in times),
        peer_s=statistics.median(b for _, b in times),
        ratio=middle,
        ratio_low=low,
        ratio_high=high,
        pairs=pairs,
    )


def machine(threads: int) -> dict[str, object]:
    """Where the figures come from."""
    return {
        "cpu": _cpu_name(),
        "cores": os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "load": round(os.getloadavg()[0], 2),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in _PACKAGES},
        "threads": threads,
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
    }


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "unknown")


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "-"


@dataclass
class Benchmark:
    """Collects rows and prints them. `columns` names what a row holds, in order."""

    name: str
    columns: Sequence[str]
    threads: int
    out: Path | None = None
    rows: list[dict[str, object]] = field(default_factory=list)

    @classmethod
    def from_arguments(
        cls, name: str, columns: Sequence[str], extend: Callable[[argparse.ArgumentParser], None] | None = None
    ) -> tuple[Benchmark, argparse.Namespace]:
        """Reads `--json OUT`, `--threads N`, `--pairs N` and what `extend` adds; sets torch's threads."""
        parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{name}")
        parser.add_argument("--json", type=Path, metavar="OUT", help="also write the results as JSON")
        parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
        parser.add_argument("--pairs", type=int, default=PAIRS, help=f"interleaved pairs, at least {PAIRS}")
        if extend is not None:
            extend(parser)
        options = parser.parse_args()
        torch.set_num_threads(options.threads)
        return cls(name, columns, options.threads, options.json), options

    def add(self, **row: object) -> None:
        """One row: shown at once on stderr, in the table at the end. Unknown columns are an error."""
        if set(row) != set(self.columns):
            raise ValueError(f"a row has {sorted(self.columns)}, not {sorted(row)}")
        self.rows.append(row)
        print("  ".join(_cell(value) for value in row.values()), file=sys.stderr)

    def finish(self) -> None:
        """Print machine and table, write the JSON."""
        where = machine(self.threads)
        print(f"{self.name}: " + ", ".join(f"{key} {_flat(value)}" for key, value in where.items()))
        cells = [list(self.columns)] + [[_cell(row[column]) for column in self.columns] for row in self.rows]
        widths = [max(len(line[i]) for line in cells) for i in range(len(self.columns))]
        for line in cells:
            print("  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip())
        if self.out is not None:
            rows = [{k: asdict(v) if isinstance(v, Comparison) else v for k, v in row.items()} for row in self.rows]
            self.out.write_text(json.dumps({"benchmark": self.name, "machine": where, "rows": rows}, indent=2) + "\n")


def _flat(value: object) -> str:
    return " ".join(f"{k} {v}" for k, v in value.items()) if isinstance(value, dict) else str(value)


def _cell(value: object) -> str:
    if isinstance(value, Comparison):
        return f"{value.ratio:.2f}x ({value.ratio_low:.2f}-{value.ratio_high:.2f}, {value.pairs} pairs)"
    return f"{value:,.2f}" if isinstance(value, float) else str(value)
