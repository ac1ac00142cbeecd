"""Prefill in chunks with a trimmed tail, and exact resume after a prefix hit (V4.1 specification, section 10).

Where a hit begins to run again is worked out in `replay`.
"""

from dataclasses import dataclass

import torch

from kernels.quantization import Rows
from workers.models.deepseek_v41.cache import SequenceCache
from workers.models.deepseek_v41.model import DeepseekV41, Forward
from workers.models.deepseek_v41.replay import replay_start
from workers.models.deepseek_v41.trim import Trim


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
