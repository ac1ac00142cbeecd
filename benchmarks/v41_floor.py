"""A decode step of V4.1 by operation: the time each takes, and the least it could take on this machine.

The floor of an operation is the larger of its bytes at the speed that memory is read at and its multiplications at the
speed of a large matrix product, both measured here. Weights count once a step (of the experts, those that somebody
chose, at most), cache rows once for each request that reads them.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch

from kernels import engram, hyper_connections, index_selection, moe, row_ops, sparse_attention
from workers.engine.engine import Engine
from workers.models.deepseek_v41 import dspark, forward_pass, latents, weights
from workers.models.deepseek_v41.plan import Planner
from workers.models.deepseek_v41.serving import ServedDeepseekV41

_BYTES = {"fp32": 4, "bf16": 2, "w8": 1, "w8a8": 1}
_OPERATIONS: list[tuple[str, Any, str]] = [
    ("linear", weights._Served, "linear"),
    ("experts", moe, "mix_experts"),
    ("experts", moe, "mix_packed"),
    ("routing", moe, "route"),
    ("hyper-connections", hyper_connections, "mix"),
    ("hyper-connections", hyper_connections, "collapse_norm"),
    ("hyper-connections", hyper_connections, "expand"),
    ("attention", sparse_attention, "sparse_attention"),
    ("index", sparse_attention, "index_scores"),
    ("index", sparse_attention, "select_positions"),
    ("index", sparse_attention, "candidate_blocks"),
    ("index", index_selection, "pack_keys"),
    ("index", index_selection, "select"),
    ("norm, rotation", row_ops, "norm_rotate"),
    ("norm, rotation", row_ops, "rotate_"),
    ("engram", engram, "inject"),
    ("cache rows", forward_pass, "read_rows"),
    ("cache rows", forward_pass, "write_rows"),
    ("cache rows", latents, "read_rows"),
    ("cache rows", dspark, "write_rows"),
    ("plan", Planner, "plan"),
]
REST = "the rest"


@dataclass(frozen=True, slots=True)
class Floor:
    """(bytes, multiplications) of a step by operation, and what the machine reaches: bytes/s, multiplications/s."""

    work: dict[str, tuple[float, float]]
    bandwidth: float
    products: float

    @classmethod
    def of(cls, engine: Engine, requests: int, context: int) -> Floor:
        """`context`: tokens that each request has on average."""
        model = engine.model
        assert isinstance(model, ServedDeepseekV41)
        return cls(_work(model, requests, context), _bandwidth(), _products())

    def seconds(self, operation: str) -> float:
        bytes_read, products = self.work.get(operation, (0.0, 0.0))
        return max(bytes_read / self.bandwidth, products / self.products)


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Seconds of a step by operation, `REST` included; the whole is measured apart, without the clocks inside."""

    operations: dict[str, float]
    whole: float

    def table(self, title: str, floor: Floor) -> list[str]:
        names = sorted(self.operations, key=lambda name: self.operations[name], reverse=True)
        least = {name: floor.seconds(name) for name in names}
        lines = [f"{title}: a step takes {1e3 * self.whole:.2f} ms, its floor is {1e3 * sum(least.values()):.2f} ms"]
        lines += [
            f"  {name:18} {1e3 * self.operations[name]:8.3f} ms   floor {1e3 * least[name]:7.3f}" for name in names
        ]
        # The time that goes by doing none of the work is where a change can gain most.
        gaps = sorted(names, key=lambda name: self.operations[name] - least[name], reverse=True)[:3]
        return [*lines, f"  the next three things to do: {', '.join(gaps)}"]


def step_times(step: Callable[[], object], steps: int) -> StepTimes:
    """Half of the steps with clocks around the operations, half without."""
    spent: dict[str, float] = defaultdict(float)
    half = steps // 2
    with _clocks(spent):
        began = time.perf_counter()
        for _ in range(half):
            step()
        clocked = time.perf_counter() - began
    spent[REST] = clocked - sum(spent.values())
    began = time.perf_counter()
    for _ in range(half):
        step()
    whole = (time.perf_counter() - began) / half
    return StepTimes({name: seconds / half for name, seconds in spent.items()}, whole)


@contextmanager
def _clocks(spent: dict[str, float]) -> Iterator[None]:
    def clocked(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any, **options: Any) -> Any:
            began = time.perf_counter()
            try:
                return function(*arguments, **options)
            finally:
                spent[name] += time.perf_counter() - began

        return run

    with ExitStack() as stack:
        for name, owner, attribute in _OPERATIONS:
            stack.enter_context(mock.patch.object(owner, attribute, clocked(name, getattr(owner, attribute))))
        yield


def _work(model: ServedDeepseekV41, requests: int, context: int) -> dict[str, tuple[float, float]]:
    c, layers = model.config, model.config.num_hidden_layers
    held = _BYTES[model.weight_format]
    channels = c.hidden_size
    heads = c.num_attention_heads * c.head_dim
    attention = channels * (c.q_lora_rank + c.head_dim) + c.q_lora_rank * heads
    attention += heads * c.o_lora_rank + c.o_groups * c.o_lora_rank * channels
    shared = 3 * channels * c.moe_intermediate_size
    gate = channels * c.n_routed_experts
    linear = layers * (attention + shared + gate) + channels * c.vocab_size
    linear += len(c.index_source_layer_ids) * (c.q_lora_rank * c.index_n_heads * c.index_head_dim)
    used = min(c.n_routed_experts, requests * c.num_experts_per_tok)
    mixes = 2 * c.hc_mult + c.hc_mult**2
    mixing = 2 * layers * mixes * c.hc_mult * channels
    seen = min(context, c.sliding_window)
    chosen = {layer: min(context // max(1, c.ratio(layer)), c.index_topk) for layer in range(layers) if c.ratio(layer)}
    keys = requests * (layers * seen + sum(chosen.values()))
    scored = requests * sum(context // c.ratio(layer) for layer in c.index_source_layer_ids)
    rows = requests * layers * seen * c.head_dim
    return {
        "linear": (linear * held, linear * requests),
        "experts": (layers * used * shared * held, layers * requests * c.num_experts_per_tok * shared),
        "hyper-connections": (mixing * 4, mixing * requests),
        "attention": (keys * c.head_dim * 4, 2 * keys * heads),
        "index": (scored * c.index_head_dim * 4, scored * c.index_head_dim * c.index_n_heads),
        "cache rows": (rows if model.cache_formats == "trained" else 4 * rows, 0),
    }


def _best(work: Callable[[], object], repeats: int = 5) -> float:
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return min(times)


def _bandwidth() -> float:
    """Bytes per second of reading: the sum of 256 MiB."""
    memory = torch.ones(2**26)
    return memory.nbytes / _best(memory.sum)


def _products() -> float:
    """Multiplications per second of a large product in float32."""
    a, b = torch.ones(1024, 1024), torch.ones(1024, 1024)
    return 1024**3 / _best(lambda: a @ b)
