"""Logits as each request wants them sampled: biased, penalised for repetition, masked by its grammar.

Everything here is a function of the request and its committed output, so a request that was suspended, or that began on
another worker, goes on as if nothing had happened.
"""

from __future__ import annotations

import torch

from kernels.sampling.masks import add_bias, apply_bitmask, penalise, words
from workers.constraints import ConstraintError
from workers.engine.sequence import Sequence


def adjusted(logits: torch.Tensor, sequences: list[Sequence]) -> tuple[torch.Tensor, dict[int, str]]:
    """(`logits` [m, vocab] or a changed copy; by row, why it cannot be sampled any further)."""
    changed = [row for row, sequence in enumerate(sequences) if _wishes(sequence)]
    if not changed:
        return logits, {}
    logits = logits.clone()
    for row in changed:
        sampling = sequences[row].request.sampling
        if sampling.presence_penalty or sampling.frequency_penalty:
            outputs = torch.tensor(sequences[row].tokens[sequences[row].prompt_tokens :], dtype=torch.int64)
            penalise(logits[row], outputs, presence=sampling.presence_penalty, frequency=sampling.frequency_penalty)
        add_bias(logits[row], sampling.logit_bias)
    return logits, _constrain(logits, sequences)


def _wishes(sequence: Sequence) -> bool:
    s = sequence.request.sampling
    return bool(s.logit_bias or s.presence_penalty or s.frequency_penalty or sequence.request.constraint is not None)


def _constrain(logits: torch.Tensor, sequences: list[Sequence]) -> dict[int, str]:
    rows, faults = [], {}
    masks = torch.zeros(len(sequences), words(logits.shape[1]), dtype=torch.int32)
    for row, sequence in enumerate(sequences):
        constraint = sequence.request.constraint
        if constraint is None:
            continue
        mask = masks[row]
        try:
            constraint.fill(sequence.tokens[sequence.prompt_tokens :], mask.data_ptr(), mask.nbytes)
        except ConstraintError as error:
            faults[row] = str(error)
        else:
            if bool(mask.any()):
                rows.append(row)
            else:
                faults[row] = "the grammar allows no token of the vocabulary here"
    if rows:
        index = torch.tensor(rows)
        constrained = logits[index]
        apply_bitmask(constrained, masks[index])
        logits[index] = constrained
    return faults
