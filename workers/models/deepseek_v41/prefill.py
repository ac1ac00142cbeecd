"""Prefill in chunks with a trimmed tail, and exact resume after a prefix hit (V4.1 specification, section 10).

A hit of H tokens has exact paged rows but no window rows. What a cold run of the whole prompt (trimmed to its last W
rows after layer `cut`) would give is reached in two ways, N new tokens after the hit:

- *stored rows*: with the encoder-side window rows (layers 0..cut) of the W-1 positions before `P - W` at hand, P the
  prompt's length, run from there: at most the last W tokens of the hit, without rewriting their paged rows;
- *recompute*: without any, run the last `min(H, max(cut (W-1), (cut+1)(W-1) + W - N))` tokens, rounded up to even. A
  row t is exact at the input of layer l if `t - l (W-1)` is at or after the first token run again.
"""

from dataclasses import dataclass

import torch

from kernels.quantization import Rows
from workers.models.deepseek_v41.cache import SequenceCache
from workers.models.deepseek_v41.config import DeepseekV41Config
from workers.models.deepseek_v41.model import DeepseekV41, Forward, Trim


@dataclass(frozen=True, slots=True)
class Prefill:
    """logits [kept, vocabulary] of positions first.., rows per expert [layers, experts] over all chunks."""

    first: int
    logits: torch.Tensor
    expert_counts: torch.Tensor


def prefill(
    model: DeepseekV41, ids: torch.Tensor, cache: SequenceCache, trim: Trim = Trim.OFF, chunk: int | None = None
) -> Prefill:
    """Run a prompt: the ids from position `cache.length` to its end, at most `chunk` at a time.

    The tail is that of the whole prompt, so chunks change nothing but rounding. Raises `InputError` before any work.
    """
    model.check_input(ids, cache.length)
    tail = model.tail(cache.length + len(ids), trim)
    parts: list[Forward] = [model.forward(part, cache, tail) for part in ids.split(chunk or max(1, len(ids)))]
    kept = [part for part in parts if len(part.logits)]
    return Prefill(
        first=kept[0].first if kept else cache.length,
        logits=torch.cat([part.logits for part in parts]),
        expert_counts=torch.stack([part.expert_counts for part in parts]).sum(0),
    )


def replay_start(config: DeepseekV41Config, hit: int, prompt: int, *, stored_rows: bool) -> int:
    """The position to run from again after a hit of `hit` of `prompt` tokens, so that the result is a cold run's."""
    if not 0 <= hit < prompt:
        raise ValueError(f"a hit of {hit} of {prompt} tokens leaves no token to run")
    window = config.sliding_window
    if stored_rows:
        return min(hit, max(0, prompt - window))
    reach = window - 1
    exact = max(config.cut * reach, (config.cut + 1) * reach + window - (prompt - hit))
    return max(0, hit - exact - exact % 2)


def sidecar_span(config: DeepseekV41Config, hit: int, prompt: int) -> tuple[int, int]:
    """The positions [first, last) whose encoder-side window rows a resume from stored rows needs."""
    last = replay_start(config, hit, prompt, stored_rows=True)
    return max(0, last - (config.sliding_window - 1)), last


def resume(
    model: DeepseekV41,
    prompt: torch.Tensor,
    cache: SequenceCache,
    trim: Trim = Trim.COMPACT,
    windows: dict[int, Rows] | None = None,
    chunk: int | None = None,
) -> Prefill:
    """Finish a prompt whose first `cache.length` tokens were a hit (`SequenceCache.prefix`).

    `windows`: the encoder-side rows of `sidecar_span`, by layer; None recomputes them. Not exact with `Trim.OFF`: the
    layers after `cut` would need window rows that no hit has.
    """
    start = replay_start(model.config, cache.length, len(prompt), stored_rows=windows is not None)
    cache.replay_from(start, windows)
    return prefill(model, prompt[start:], cache, trim, chunk)
