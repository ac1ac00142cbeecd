"""Sampling without sorting the vocabulary: the filters rarely keep more than a few tokens.

The most likely 128 are ranked; where they provably contain everything a row's filters keep, the row is drawn from
them, with the same numbers in the same order as a full sort would give. Other rows are sorted in full.
"""

from __future__ import annotations

import torch

from kernels.sampling import reference
from kernels.sampling.parameters import SamplingParameters

CANDIDATES = 128


def sample(logits: torch.Tensor, parameters: SamplingParameters) -> torch.Tensor:
    """int64 [m]; every row's temperature is at least `reference.GREEDY_BELOW`."""
    weights = reference.weights_of(logits, parameters)
    tokens = torch.empty(logits.shape[0], dtype=torch.int64)
    filtered = parameters.filtered
    plain = (~filtered).nonzero()[:, 0]
    if plain.shape[0]:
        tokens[plain] = reference.sample_unfiltered(weights[plain], parameters.uniforms[plain])
    ranked = filtered.nonzero()[:, 0]
    if ranked.shape[0]:
        tokens[ranked] = _sample_filtered(weights[ranked], parameters.rows(ranked))
    return tokens


def _sample_filtered(weights: torch.Tensor, parameters: SamplingParameters) -> torch.Tensor:
    width = min(CANDIDATES, weights.shape[1])
    top, ids = weights.topk(width, dim=-1)
    # topk leaves the order of equal values open: by id first, then stably by value.
    ids, order = ids.sort(dim=-1)
    top, order = top.gather(1, order).sort(dim=-1, descending=True, stable=True)
    ids = ids.gather(1, order)
    cumulative = top.double().cumsum(-1)
    kept = reference.kept_ranks(top, cumulative, weights.double().sum(-1), parameters)
    # Complete when a candidate remains that was not kept and is smaller: then nothing outside could have been kept, and
    # no tie crosses the edge. A top_k beyond the candidates has a mass that they do not know.
    last_kept = top.gather(1, kept[:, None] - 1)[:, 0]
    complete = (last_kept > top[:, -1]) & (parameters.top_k < width)
    total = cumulative.gather(1, kept[:, None] - 1)
    ranks = reference.draw_below(cumulative, total, parameters.uniforms)
    tokens = ids.gather(1, ranks[:, None])[:, 0]
    rest = (~complete).nonzero()[:, 0]
    if rest.shape[0]:
        tokens[rest] = reference.sample_filtered(weights[rest], parameters.rows(rest))
    return tokens
