"""The engine against `transformers` on the same SmolLM2 weights, in float32 and bfloat16: decode and prefill.

`decode N` is N requests of 128 prompt tokens generating 32 more, all at once; `prefill N` is one prompt of N tokens
up to its first token, cold. Both sides are greedy and produce the same number of tokens. `transformers` decodes a
batch of equal lengths, which is its best case.
"""

from __future__ import annotations

import argparse
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.harness import Benchmark, compare
from workers.engine.api import EngineRequest
from workers.engine.engine import Engine
from workers.home import Home
from workers.manifest import read_manifest
from workers.models.add_package import WEIGHTS_NAME
from workers.models.store import ModelStore, cache_identity, load_model
from workers.protocol import RequestId, Sampling
from workers.spec import EngineSettings, WeightFormat

MODEL = "smollm2-135m-instruct"
PROMPT, OUTPUT = 128, 32
COLUMNS = ("format", "work", "engine tok/s", "transformers tok/s", "engine / transformers")


class Ours:
    def __init__(self, folder: Path, weight_format: WeightFormat) -> None:
        model = load_model(folder, weight_format=weight_format)
        settings = EngineSettings(pool_blocks=1024, weight_format=weight_format, max_batch_tokens=2048)
        self.engine = Engine(model, settings, cache_identity(read_manifest(folder), model))
        self.runs = 0

    def run(self, prompts: torch.Tensor, output: int) -> None:
        self.runs += 1
        now = time.monotonic()
        for number, prompt in enumerate(prompts.tolist()):
            self.engine.submit(
                EngineRequest(
                    request_id=RequestId(f"{self.runs}.{number}"),
                    tokens=prompt,
                    sampling=Sampling(temperature=0.0, max_tokens=output),
                    salt=str(self.runs).encode(),  # no prefix from an earlier run
                    arrived=now,
                    deadline=now + 3600,
                )
            )
        made = 0
        while self.engine.has_work():
            made += len(self.engine.step().deltas)
        assert made == output * len(prompts)


class Theirs:
    def __init__(self, folder: Path, dtype: torch.dtype) -> None:
        from transformers import AutoModelForCausalLM

        self.model: Any = AutoModelForCausalLM.from_pretrained(folder, gguf_file=WEIGHTS_NAME, dtype=dtype).eval()

    @torch.inference_mode()
    def run(self, prompts: torch.Tensor, output: int) -> None:
        made = self.model.generate(
            prompts,
            attention_mask=torch.ones_like(prompts),
            do_sample=False,
            min_new_tokens=output,
            max_new_tokens=output,
            pad_token_id=0,
        )
        assert made.shape[1] == prompts.shape[1] + output


def extend(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--formats", nargs="+", choices=("fp32", "bf16"), default=("fp32", "bf16"))
    parser.add_argument("--decode", nargs="+", type=int, default=(1, 8, 32), metavar="REQUESTS")
    parser.add_argument("--prefill", nargs="+", type=int, default=(512, 2000), metavar="TOKENS")


def main() -> None:
    torch.manual_seed(0)
    bench, options = Benchmark.from_arguments("engine_smollm2", COLUMNS, extend)
    folder = ModelStore(Home.from_env().models).folder(MODEL)
    for name in options.formats:
        weight_format = WeightFormat(name)
        dtype = torch.float32 if weight_format is WeightFormat.FP32 else torch.bfloat16
        ours, theirs = Ours(folder, weight_format), Theirs(folder, dtype)
        works = [(f"decode {n}", n, PROMPT, OUTPUT, n * OUTPUT) for n in options.decode]
        works += [(f"prefill {n}", 1, n, 1, n) for n in options.prefill]
        for label, requests, prompt, output, tokens in works:
            prompts = torch.randint(100, 40_000, (requests, prompt))
            result = compare(
                partial(ours.run, prompts, output), partial(theirs.run, prompts, output), pairs=options.pairs
            )
            row = (name, label, tokens / result.ours_s, tokens / result.peer_s, result)
            bench.add(**dict(zip(COLUMNS, row, strict=True)))
    bench.finish()


if __name__ == "__main__":
    main()
