"""Perplexity of a fixed text (public domain, `benchmarks/data/`) in every weight format: what the default is chosen by.

The text runs in windows of 512 tokens through the model's own forward pass and cache. `above fp32` is the ratio to
float32 less one; seconds are those of the whole text, for orientation only.
"""

from __future__ import annotations

import argparse
import math
import time
from pathlib import Path

import torch
from tokenizers import Tokenizer

from benchmarks.harness import Benchmark
from kernels import native
from workers.engine.layout import CacheLayout
from workers.home import Home
from workers.models.base import Batch, CausalModel, Segment
from workers.models.store import ModelStore, load_model
from workers.spec import WeightFormat

TEXT = Path(__file__).parent / "data" / "public_domain.txt"
WINDOW = 512
COLUMNS = ("format", "path", "tokens", "perplexity", "above fp32 %", "seconds")


def log_likelihood(model: CausalModel, window: list[int]) -> float:
    """Of all tokens but the first, in natural logarithms."""
    layout = CacheLayout(model.cache_spec())
    blocks = layout.blocks_for(len(window))
    views = layout.views(torch.zeros(blocks, layout.block_bytes, dtype=torch.uint8))
    rows = torch.arange(len(window))
    segment = Segment(start=0, count=len(window), context=0, slots=list(range(blocks)))
    batch = Batch(tokens=torch.tensor(window), positions=rows, segments=[segment], logit_rows=rows)
    scores = model.forward(batch, views).logits[:-1].log_softmax(-1)
    return float(scores.gather(1, batch.tokens[1:, None]).sum(dtype=torch.float64))


def extend(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--text", type=Path, default=TEXT)


def main() -> None:
    bench, options = Benchmark.from_arguments("perplexity", COLUMNS, extend)
    folder = ModelStore(Home.from_env().models).folder(options.model)
    tokens = Tokenizer.from_file(str(folder / "tokenizer.json")).encode(options.text.read_text()).ids
    windows = [tokens[start : start + WINDOW] for start in range(0, len(tokens) - 1, WINDOW)]
    scored = sum(len(window) - 1 for window in windows)
    exact = 0.0
    for name in WeightFormat:  # fp32 comes first
        model = load_model(folder, weight_format=name)
        began = time.perf_counter()
        perplexity = math.exp(-sum(log_likelihood(model, window) for window in windows) / scored)
        exact = exact or perplexity
        row = (
            str(name),
            native.path(),
            scored,
            perplexity,
            100 * (perplexity / exact - 1),
            time.perf_counter() - began,
        )
        bench.add(**dict(zip(COLUMNS, row, strict=True)))
    bench.finish()


if __name__ == "__main__":
    main()
