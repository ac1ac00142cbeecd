"""Drawing tokens from logits: stateless, so that a draw never depends on what else is in the batch.

A draw is a function of the row's logits, its parameters and (seed, position, purpose). Filters apply in the order
temperature, `top_k`, `top_p` (the smallest set of most likely tokens whose mass reaches it, within what top_k
left), `min_p` (a fraction of the most likely token's probability). Equal logits rank by lower id. A temperature
below 1e-5 is greedy.
"""

from __future__ import annotations

import torch

from kernels.sampling import candidates, reference
from kernels.sampling.parameters import SamplingParameters
from kernels.sampling.uniform import Purpose, uniform

__all__ = ["Purpose", "SamplingParameters", "log_probabilities", "sample", "uniform"]


def sample(logits: torch.Tensor, parameters: SamplingParameters) -> torch.Tensor:
    """Token ids int64 [m] for logits float32 [m, vocab], finite. m may be 0.

    The draw inverts the cumulative distribution at `uniform(seed, position, purpose)`: in order of ids where no
    filter is on, else in order of falling probability.
    """
    tokens = logits.argmax(-1)
    drawn = (parameters.temperature >= reference.GREEDY_BELOW).nonzero()[:, 0]
    if drawn.shape[0]:
        rows = logits if drawn.shape[0] == logits.shape[0] else logits[drawn]
        tokens[drawn] = candidates.sample(rows, parameters.rows(drawn))
    return tokens


def log_probabilities(
    logits: torch.Tensor, tokens: torch.Tensor, top: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Log-probabilities of the untouched distribution (temperature 1, no filter).

    For logits [m, vocab] and tokens [m]: those of `tokens`, float32 [m]; ids [m, top] of the most likely, best
    first; and theirs, float32 [m, top].
    """
    return reference.log_probabilities(logits, tokens, top)
