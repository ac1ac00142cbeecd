"""The engine on V4.1: trimmed against whole prefill, decoding against the plain loop, and a step against its floor.

Models are v41-nano and a wider one of the same layers (`models make-nano [--wide]`), random weights, as deployments run
them; `--format` is the weights'. `compact` and `off` take a cold prompt of 4,096 tokens to its first token.
`decode N`: N requests of 128 tokens that generate 16 more; the plain loop is one sequence, token by token, through
the model of
`--baseline`, a source tree of an earlier version (`git archive d8ee9a1 | tar -x -C FOLDER` has the numerics model as it
was before it was batched), in a process of its own with as many threads. Without `--baseline` it is today's model, one
sequence at a time, with float32 weights.

Under the table: where a decode step's time goes, by operation, beside the least it could take by the bytes that are
read and the multiplications that are made, at the speeds that this machine reaches at that moment.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

from benchmarks.harness import Benchmark, Comparison, compare
from benchmarks.v41_floor import Floor, step_times
from kernels import native
from workers.engine.api import EngineRequest
from workers.engine.engine import Engine
from workers.identity import CacheIdentity
from workers.models.deepseek_v41.nano import NANO, WIDE, make_nano
from workers.models.deepseek_v41.serving import ServedDeepseekV41, ServingOptions, load_served
from workers.models.deepseek_v41.trim import Trim
from workers.protocol import RequestId, Sampling
from workers.spec import EngineSettings

COLUMNS = ("model", "work", "ours", "peer", "ours / peer")
PROMPT, OUTPUT, LONG = 128, 16, 4096
PLAIN_LOOP = """
import sys, time
sys.path.insert(0, sys.argv[1])
import torch
from pathlib import Path
from workers.models.deepseek_v41.formats import CacheFormats
from workers.models.deepseek_v41.loading import load
torch.set_num_threads(int(sys.argv[3]))
model = load(Path(sys.argv[2]))
for line in sys.stdin:
    prompt, output = map(int, line.split())
    cache = model.new_cache(CacheFormats.TRAINED)
    token = model.forward(torch.arange(3, 3 + prompt), cache).logits[-1].argmax()
    began = time.perf_counter()
    for _ in range(output):
        token = model.forward(token[None], cache).logits[-1].argmax()
    print(time.perf_counter() - began, flush=True)
"""


class Ours:
    """An engine on one model; runs keep out of each other's prefixes."""

    def __init__(self, model: ServedDeepseekV41) -> None:
        spec = model.cache_spec()
        identity = CacheIdentity(
            weights_fingerprint="benchmark",
            tokenizer_fingerprint="benchmark",
            weight_format=model.weight_format,
            numerics="default",
            cache_dtype=str(model.cache_formats),
            layout_version=spec.layout_version,
            block_tokens=spec.block_tokens,
        )
        settings = EngineSettings(pool_blocks=512, max_batch_tokens=512)
        self.engine, self.runs = Engine(model, settings, identity), 0

    def start(self, requests: int, prompt: int, output: int) -> None:
        self.runs += 1
        now = time.monotonic()
        for number in range(requests):
            self.engine.submit(
                EngineRequest(
                    request_id=RequestId(f"{self.runs}.{number}"),
                    tokens=list(range(3 + number, 3 + number + prompt)) if prompt < 1900 else _text(prompt, self.runs),
                    sampling=Sampling(temperature=0.0, max_tokens=output),
                    salt=str(self.runs).encode(),
                    arrived=now,
                    deadline=now + 3600,
                )
            )

    def finish(self) -> None:
        while self.engine.has_work():
            self.engine.step()

    def prefill(self, prompt: int) -> None:
        self.start(1, prompt, 1)
        self.finish()

    def prefilled(self, requests: int) -> None:
        """Requests that have their first token, and OUTPUT more to make."""
        self.finish()
        self.start(requests, PROMPT, OUTPUT + 1)
        first: set[RequestId] = set()
        while len(first) < requests:
            first |= {delta.request_id for delta in self.engine.step().deltas}


def _text(tokens: int, seed: int) -> list[int]:
    return torch.randint(3, 1900, (tokens,), generator=torch.Generator().manual_seed(seed)).tolist()


class PlainLoop:
    def __init__(self, tree: Path, checkpoint: Path, threads: int) -> None:
        command = [sys.executable, "-c", PLAIN_LOOP, str(tree), str(checkpoint), str(threads)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def decode(self) -> float:
        """Seconds for OUTPUT tokens after a prompt of PROMPT."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(PROMPT, OUTPUT, file=self.process.stdin, flush=True)
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError("the plain loop has ended; its error is above")
        return float(line)

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(timeout=60)


def decode_pairs(ours: Ours, loop: PlainLoop, requests: int, pairs: int) -> tuple[float, float, Comparison]:
    """(our tok/s, the loop's, tokens per second against each other), the prompts untimed on both sides."""
    mine: list[float] = []
    theirs: list[float] = []

    def run() -> None:
        ours.prefilled(requests)
        began = time.perf_counter()
        ours.finish()
        mine.append(time.perf_counter() - began)

    compare(run, lambda: theirs.append(loop.decode()), pairs=pairs)
    mine, theirs = mine[1:], theirs[1:]  # the first pair warmed up
    ratios = torch.tensor([requests * b / a for a, b in zip(mine, theirs, strict=True)])
    low, middle, high = ratios.quantile(torch.tensor([0.25, 0.5, 0.75])).tolist()
    seconds = [float(torch.tensor(times).median()) for times in (mine, theirs)]
    comparison = Comparison(seconds[0], seconds[1], middle, low, high, pairs)
    return requests * OUTPUT / seconds[0], OUTPUT / seconds[1], comparison


def extend(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--models", nargs="+", choices=("nano", "wide"), default=("nano", "wide"))
    parser.add_argument("--format", choices=("fp32", "bf16", "w8", "w8a8"), default="fp32")
    parser.add_argument("--decode", nargs="+", type=int, default=(1, 32), metavar="REQUESTS")
    parser.add_argument("--prompt", type=int, default=LONG, help=f"tokens of the long prompt (default {LONG})")
    parser.add_argument("--baseline", type=Path, metavar="FOLDER", help="source tree of the plain loop (default: this)")


def run_model(bench: Benchmark, options: argparse.Namespace, name: str, folder: Path) -> list[str]:
    make_nano(folder, 0, WIDE if name == "wide" else NANO)
    load: Callable[[Trim], ServedDeepseekV41] = lambda trim: load_served(  # noqa: E731
        folder, ServingOptions(weight_format=options.format, trim=trim)
    )
    compact, off = Ours(load(Trim.COMPACT)), Ours(load(Trim.OFF))
    result = compare(
        partial(compact.prefill, options.prompt), partial(off.prefill, options.prompt), pairs=options.pairs
    )
    work = f"prefill {options.prompt}: compact against off, tok/s"
    row = (name, work, options.prompt / result.ours_s, options.prompt / result.peer_s, result)
    bench.add(**dict(zip(COLUMNS, row, strict=True)))
    tree = options.baseline or Path(__file__).resolve().parent.parent
    loop = PlainLoop(tree, folder, options.threads)
    report: list[str] = []
    for requests in options.decode:
        mine, theirs, decoded = decode_pairs(compact, loop, requests, options.pairs)
        row = (name, f"decode {requests}: engine against plain loop, tok/s", mine, theirs, decoded)
        bench.add(**dict(zip(COLUMNS, row, strict=True)))
        compact.prefilled(requests)
        times = step_times(compact.engine.step, steps=OUTPUT - 2)
        report += times.table(f"{name}, decode {requests}", Floor.of(compact.engine, requests, PROMPT + OUTPUT // 2))
        compact.finish()
    loop.close()
    for engine in (compact.engine, off.engine):
        engine.close()
    return report


def main() -> None:
    torch.manual_seed(0)
    bench, options = Benchmark.from_arguments("engine_v41", COLUMNS, extend)
    report: list[str] = []
    with tempfile.TemporaryDirectory() as made:
        for name in options.models:
            report += run_model(bench, options, name, Path(made) / name)
    bench.finish()
    print(f"kernels: {native.path()}; weights {options.format}; plain loop from {options.baseline or 'this version'}")
    print("\n".join(report))


if __name__ == "__main__":
    main()
