"""The engine against `transformers` on the same SmolLM2 weights: decode, ragged batches, prefill, a repeated prefix.

- `decode 1`: one request of 128 prompt tokens, 32 generated.
- `ragged N`: N requests at once, 32 to 224 prompt tokens and 16 to 64 generated. `transformers` runs them as its users
  do: one padded batch, until the longest answer is done; only wanted tokens count.
- `prefill N`: a cold prompt of N tokens up to its first token.
- `prefix N`: the engine against itself: the first token of that prompt again, against cold.

Both sides are greedy. The engine takes every format of `--formats`, `transformers` every one of `--peers`.
"""

from __future__ import annotations

import argparse
import random
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.harness import Benchmark, Comparison, compare
from kernels import native
from workers.engine.api import EngineRequest
from workers.engine.engine import Engine
from workers.home import Home
from workers.manifest import read_manifest
from workers.models.add_package import WEIGHTS_NAME
from workers.models.store import ModelStore, cache_identity, load_model
from workers.protocol import RequestId, Sampling
from workers.spec import EngineSettings, WeightFormat

MODEL = "smollm2-135m-instruct"
COLUMNS = ("work", "engine", "peer", "engine tok/s", "peer tok/s", "engine / peer")


@dataclass(frozen=True, slots=True)
class Work:
    label: str
    prompts: list[list[int]]
    outputs: list[int]
    counts_prompt: bool = False

    @property
    def tokens(self) -> int:
        return sum(map(len, self.prompts)) if self.counts_prompt else sum(self.outputs)


class Ours:
    """`salted`: each run under a salt of its own, so that no prefix comes from an earlier one."""

    def __init__(self, folder: Path, weight_format: WeightFormat) -> None:
        model = load_model(folder, weight_format=weight_format)
        settings = EngineSettings(pool_blocks=1024, weight_format=weight_format)
        self.engine = Engine(model, settings, cache_identity(read_manifest(folder), model))
        self.runs = 0

    def run(self, work: Work, *, salted: bool = True) -> None:
        self.runs += 1
        now = time.monotonic()
        for number, (prompt, output) in enumerate(zip(work.prompts, work.outputs, strict=True)):
            self.engine.submit(
                EngineRequest(
                    request_id=RequestId(f"{self.runs}.{number}"),
                    tokens=prompt,
                    sampling=Sampling(temperature=0.0, max_tokens=output),
                    salt=str(self.runs).encode() if salted else b"again",
                    arrived=now,
                    deadline=now + 3600,
                )
            )
        made = 0
        while self.engine.has_work():
            made += len(self.engine.step().deltas)
        assert made == sum(work.outputs)


class Theirs:
    def __init__(self, folder: Path, dtype: torch.dtype) -> None:
        from transformers import AutoModelForCausalLM

        self.model: Any = AutoModelForCausalLM.from_pretrained(folder, gguf_file=WEIGHTS_NAME, dtype=dtype).eval()

    @torch.inference_mode()
    def run(self, work: Work) -> None:
        longest, output = max(map(len, work.prompts)), max(work.outputs)
        tokens = torch.zeros(len(work.prompts), longest, dtype=torch.int64)
        mask = torch.zeros_like(tokens)
        for row, prompt in enumerate(work.prompts):  # padded on the left, as generation wants it
            tokens[row, longest - len(prompt) :] = torch.tensor(prompt)
            mask[row, longest - len(prompt) :] = 1
        made = self.model.generate(
            tokens,
            attention_mask=mask,
            do_sample=False,
            min_new_tokens=output,
            max_new_tokens=output,
            pad_token_id=0,
        )
        assert made.shape[1] == longest + output


def make_works(requests: int, prefill: int) -> list[Work]:
    draw = random.Random(0)

    def prompt(length: int) -> list[int]:
        return [draw.randrange(100, 40_000) for _ in range(length)]

    ragged = [prompt(draw.randint(32, 224)) for _ in range(requests)]
    return [
        Work("decode 1", [prompt(128)], [32]),
        Work(f"ragged {requests}", ragged, [draw.randint(16, 64) for _ in ragged]),
        Work(f"prefill {prefill}", [prompt(prefill)], [1], counts_prompt=True),
    ]


def extend(parser: argparse.ArgumentParser) -> None:
    formats = [str(name) for name in WeightFormat]
    parser.add_argument("--formats", nargs="+", choices=formats, default=[str(EngineSettings().weight_format)])
    parser.add_argument("--peers", nargs="+", choices=("fp32", "bf16"), default=("bf16", "fp32"))
    parser.add_argument("--requests", type=int, default=32)
    parser.add_argument("--prefill", type=int, default=2000, metavar="TOKENS")


def main() -> None:
    bench, options = Benchmark.from_arguments("engine_smollm2", COLUMNS, extend)
    folder = ModelStore(Home.from_env().models).folder(MODEL)
    works = make_works(options.requests, options.prefill)
    peers = {name: Theirs(folder, torch.bfloat16 if name == "bf16" else torch.float32) for name in options.peers}
    for name in options.formats:
        ours = Ours(folder, WeightFormat(name))
        label = f"{name}, {native.path()}"

        def add(work: Work, peer: str, result: Comparison, label: str = label) -> None:
            speeds = (work.tokens / result.ours_s, work.tokens / result.peer_s)
            bench.add(**dict(zip(COLUMNS, (work.label, label, peer, *speeds, result), strict=True)))

        for work in works:
            for peer, theirs in peers.items():
                result = compare(partial(ours.run, work), partial(theirs.run, work), pairs=options.pairs)
                add(work, f"transformers {peer}", result)
        again = Work(f"prefix {options.prefill}", works[-1].prompts, [1], counts_prompt=True)
        warm = compare(partial(ours.run, again, salted=False), partial(ours.run, again), pairs=options.pairs)
        add(again, "the same, cold", warm)
    bench.finish()


if __name__ == "__main__":
    main()
