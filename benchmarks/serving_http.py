"""Output tokens per second over HTTP at 1, 8 and 32 concurrent requests: Galley beside llama.cpp and vLLM.

Each request is a completion of about 128 prompt tokens and at most 64 new ones, greedy, all of a level sent at once;
what counts are the tokens that the server says it made, over the time until the last answer is there. Prompts differ
between repetitions, so nothing is served from an earlier one. Servers run one at a time beside a running Galley, on the
same threads; the rounds of a level alternate between Galley's deployments.

Galley is the running instance at `--url`, with `--models` deployed before (one as role `both`, one split). Peers are
installed from PyPI into virtual environments under `--cache`, never into the product's; one that cannot be installed or
started is a row that says why.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import signal
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
from tokenizers import Tokenizer

from benchmarks.harness import Benchmark
from benchmarks.peers.servers import PeerError, llama_cpp, vllm
from workers.home import Home
from workers.models.store import ModelStore

MODEL = "smollm2-135m-instruct"
PROMPT, OUTPUT = 128, 64
COLUMNS = ("server", "concurrent", "tok/s", "lowest", "highest", "p50 s", "note")


@dataclass(frozen=True, slots=True)
class Target:
    name: str
    url: str
    model: str
    headers: dict[str, str] = field(default_factory=dict)


async def _one(client: httpx.AsyncClient, target: Target, prompt: str) -> tuple[int, float]:
    began = time.perf_counter()
    body = {"model": target.model, "prompt": prompt, "max_tokens": OUTPUT, "temperature": 0}
    response = await client.post(f"{target.url}/v1/completions", json=body, headers=target.headers)
    response.raise_for_status()
    return int(response.json()["usage"]["completion_tokens"]), time.perf_counter() - began


async def burst(target: Target, prompts: list[str]) -> tuple[float, float]:
    """(output tokens per second, median seconds of a request)."""
    limits = httpx.Limits(max_connections=len(prompts))
    async with httpx.AsyncClient(timeout=600, limits=limits) as client:
        began = time.perf_counter()
        answers = await asyncio.gather(*(_one(client, target, prompt) for prompt in prompts))
        elapsed = time.perf_counter() - began
    return sum(made for made, _ in answers) / elapsed, statistics.median(took for _, took in answers)


def make_prompts(tokenizer: Tokenizer, count: int, seed: str) -> list[str]:
    draw = random.Random(seed)
    return [tokenizer.decode([draw.randrange(1000, 40_000) for _ in range(PROMPT)]) for _ in range(count)]


def measure(bench: Benchmark, targets: list[Target], levels: list[int], rounds: int, tokenizer: Tokenizer) -> None:
    for level in levels:
        results: dict[str, list[tuple[float, float]]] = {target.name: [] for target in targets}
        for number in range(-1, rounds):  # the first warms up
            for target in targets:
                prompts = make_prompts(tokenizer, level, f"{target.name} {level} {number} {time.time()}")
                measured = asyncio.run(burst(target, prompts))
                if number >= 0:
                    results[target.name].append(measured)
        for name, found in results.items():
            speeds = [speed for speed, _ in found]
            middle = statistics.median(took for _, took in found)
            row = (name, level, statistics.median(speeds), min(speeds), max(speeds), middle, f"{rounds} rounds")
            bench.add(**dict(zip(COLUMNS, row, strict=True)))


@contextmanager
def peer(bench: Benchmark, name: str, server: AbstractContextManager[str]) -> Iterator[Target | None]:
    """The running peer, or None and a row with the reason."""
    try:
        url = server.__enter__()
    except PeerError as error:
        bench.add(**dict(zip(COLUMNS, (name, "-", "-", "-", "-", "-", f"skipped: {error}"), strict=True)))
        yield None
        return
    try:
        yield Target(name, url, MODEL)
    finally:
        server.__exit__(None, None, None)


def extend(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--key", default="", help="an API key of the running instance; without one only peers run")
    parser.add_argument("--models", nargs="+", default=[MODEL], help="names under which Galley serves the model")
    parser.add_argument("--peers", nargs="*", choices=("bf16", "q8_0", "vllm"), default=("bf16", "q8_0", "vllm"))
    parser.add_argument("--levels", nargs="+", type=int, default=[1, 8, 32])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cache", type=Path, default=Path("build/peers"))


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that a peer is ended, too
    bench, options = Benchmark.from_arguments("serving_http", COLUMNS, extend)
    folder = ModelStore(Home.from_env().models).folder(MODEL)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    if options.key:
        headers = {"Authorization": f"Bearer {options.key}"}
        ours = [Target(f"galley {model}", options.url, model, headers) for model in options.models]
        measure(bench, ours, options.levels, options.rounds, tokenizer)
    cache, threads = options.cache.resolve(), options.threads
    for name in options.peers:
        server = vllm(cache, folder, threads) if name == "vllm" else llama_cpp(cache, folder, name, threads)
        label = "vllm bf16" if name == "vllm" else f"llama.cpp {name}"
        with peer(bench, label, server) as target:
            if target is not None:
                measure(bench, [target], options.levels, options.rounds, tokenizer)
    bench.finish()


if __name__ == "__main__":
    main()
