"""Replay a public trace and compare the token hit rate with the ideal at the same block size.

    python -m benchmarks.trace_replay --trace FILE[.zst] [--mode store|engine] [--model NAME] [--requests N] [--scale K]
                                      [--seed S] [--payload-bytes N] [--pool-blocks N] [--lru-share X] [--json OUT]

Mode `store` (`benchmarks.trace_store`) has no model and compressed time; mode `engine` (`benchmarks.trace_engine`)
sends whole sessions through prefill engines that share a store. The same seed gives the same hits; speeds, and what
lies below `timing`, differ from run to run.

A mode is a function of (trace, arguments) that returns `Figures`; `MODES` lists them.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path

import msgspec

from benchmarks import traces
from benchmarks.harness import Benchmark, machine
from benchmarks.trace_engine import replay_engine
from benchmarks.trace_figures import Figures
from benchmarks.trace_sessions import ENGINE_OVERLAP
from benchmarks.trace_store import replay_store
from benchmarks.traces import Trace

MODES: dict[str, Callable[[Trace, argparse.Namespace], Figures]] = {"store": replay_store, "engine": replay_engine}


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trace", type=Path, required=True)
    parser.add_argument("--mode", choices=sorted(MODES), default="store")
    parser.add_argument("--model", default="v41-nano", help="name in the model store, or a folder (mode engine)")
    parser.add_argument("--engines", type=int, default=2, help="prefill engines that share the store (mode engine)")
    parser.add_argument("--cold-requests", type=int, default=8, help="requests that measure the cold speed (engine)")
    parser.add_argument("--batch-tokens", type=int, default=512, help="token budget of a step (mode engine)")
    parser.add_argument("--requests", type=int, help="at least so many, in whole sessions; default: all")
    parser.add_argument("--scale", type=int, default=1, help="divide lengths by this")
    parser.add_argument("--overlap", type=int, help="sessions that run side by side; default: 32, mode engine 8")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--payload-bytes", type=int, default=4096, help="bytes of a block")
    parser.add_argument(
        "--pool-blocks", type=int, help="blocks of a pool; default: 16384, mode engine 2048; 0: no pool"
    )
    parser.add_argument("--lru-share", type=float, help="store holds this share of the unique blocks; default: all")
    parser.add_argument("--low-watermark", type=float, default=0.95)
    parser.add_argument("--sweep-interval", type=float, default=15.0, help="seconds of the trace's time")
    parser.add_argument("--ttl", type=float, help="life in seconds; default: the class's")
    parser.add_argument("--root", type=Path, help="folder for the store's files; default: a temporary one")
    parser.add_argument("--json", type=Path)
    return parser.parse_args(arguments)


def main(argv: list[str] | None = None) -> Figures:
    arguments = parse(argv)
    default_overlap = traces.OVERLAP if arguments.mode == "store" else ENGINE_OVERLAP
    trace = traces.load(
        arguments.trace,
        requests=arguments.requests,
        seed=arguments.seed,
        scale=arguments.scale,
        overlap=default_overlap if arguments.overlap is None else arguments.overlap,
    )
    figures = MODES[arguments.mode](trace, arguments)
    rows = msgspec.to_builtins(figures)
    bench = Benchmark("trace_replay", ("figure", "value"), threads=1)
    for name, value in rows.items():
        bench.add(figure=name, value=f"{value:.5f}" if isinstance(value, float) else str(value))
    bench.finish()
    if arguments.json is not None:
        whole = {"benchmark": bench.name, "machine": machine(bench.threads), **rows}
        arguments.json.write_text(json.dumps(whole, indent=2) + "\n")
    return figures


if __name__ == "__main__":
    main()
