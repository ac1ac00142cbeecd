"""One token for every row of logits, each by its own request's parameters."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kernels.sampling import Purpose, SamplingParameters, log_probabilities, sample, uniform
from workers.engine.adjustments import adjusted
from workers.engine.sequence import Sequence
from workers.protocol import TokenLogprobs

_MASK = (1 << 64) - 1
_MOST_TOP_K = 1 << 31
"""Larger than any vocabulary; what a peer sends need not fit an int64."""


@dataclass(frozen=True, slots=True)
class Sampled:
    """`token` None: the row's logits were not finite, or (with a `fault`) its grammar leads nowhere."""

    token: int | None
    logprobs: TokenLogprobs | None
    fault: str = ""


@torch.inference_mode()
def sample_rows(logits: torch.Tensor, sequences: list[Sequence]) -> list[Sampled]:
    """`logits` [m, vocab] of the last committed token of each of m sequences.

    Log-probabilities are those of the model, before biases, penalties and grammars.
    """
    if not sequences:
        return []
    rows_finite = logits.isfinite().all(-1)
    finite = rows_finite.tolist()
    if not all(finite):  # the filters' searches go out of bounds on NaN, which would end everybody's engine
        logits = logits.masked_fill(~rows_finite[:, None], 0.0)
    wanted, faults = adjusted(logits, sequences)
    tokens = sample(wanted, _parameters(sequences))
    ids = tokens.tolist()
    logprobs = _logprobs(logits, tokens, sequences)
    return [
        Sampled(ids[row], logprobs.get(row))
        if finite[row] and row not in faults
        # A row that is not finite is told as that, whatever its grammar made of it.
        else Sampled(None, None, faults.get(row, "") if finite[row] else "")
        for row in range(len(ids))
    ]


def _parameters(sequences: list[Sequence]) -> SamplingParameters:
    settings = [sequence.request.sampling for sequence in sequences]
    seeds = torch.tensor([_as_int64(s.seed) for s in settings])
    positions = torch.tensor([len(sequence.tokens) for sequence in sequences])
    return SamplingParameters(
        temperature=torch.tensor([s.temperature for s in settings], dtype=torch.float32),
        top_k=torch.tensor([min(max(s.top_k, 0), _MOST_TOP_K) for s in settings]),
        top_p=torch.tensor([s.top_p for s in settings], dtype=torch.float64),
        min_p=torch.tensor([s.min_p for s in settings], dtype=torch.float32),
        uniforms=uniform(seeds, positions, Purpose.TOKEN),
    )


def _as_int64(seed: int) -> int:
    """Any integer as the int64 of its low 64 bits."""
    low = seed & _MASK
    return low - (1 << 64) if low >> 63 else low


def _logprobs(logits: torch.Tensor, tokens: torch.Tensor, sequences: list[Sequence]) -> dict[int, TokenLogprobs]:
    """Of the rows that asked for them, by row."""
    wanted = {
        row: max(s.request.sampling.logprobs, 0)
        for row, s in enumerate(sequences)
        if s.request.sampling.logprobs is not None
    }
    rows = list(wanted)
    if not rows:
        return {}
    most = min(max(wanted.values()), logits.shape[1])
    index = torch.tensor(rows)
    chosen, best_ids, best = log_probabilities(logits[index], tokens[index], most)
    return {
        row: TokenLogprobs(
            float(chosen[at]),
            list(zip(best_ids[at].tolist(), best[at].tolist(), strict=True))[: wanted[row]],
        )
        for at, row in enumerate(rows)
    }
