"""Sampling in plain torch, every filtered row sorted in full."""

from __future__ import annotations

import torch

from kernels.sampling.parameters import SamplingParameters

GREEDY_BELOW = 1e-5


def weights_of(logits: torch.Tensor, parameters: SamplingParameters) -> torch.Tensor:
    """Unnormalised probabilities float32 [m, vocab], the largest of each row 1."""
    scaled = logits - logits.amax(-1, keepdim=True)
    return scaled.div_(parameters.temperature[:, None]).exp_()


def sample_unfiltered(weights: torch.Tensor, uniforms: torch.Tensor) -> torch.Tensor:
    """Invert the cumulative distribution in order of ids."""
    return draw(weights.double().cumsum(-1), uniforms)


def sample_filtered(weights: torch.Tensor, parameters: SamplingParameters) -> torch.Tensor:
    """Invert it in order of falling probability (equal ones by id), over what the filters leave."""
    ranked, ids = weights.sort(dim=-1, descending=True, stable=True)
    cumulative = ranked.double().cumsum(-1)
    mass = weights.double().sum(-1)
    kept = kept_ranks(ranked, cumulative, mass, parameters)
    total = cumulative.gather(1, kept[:, None] - 1)
    ranks = draw_below(cumulative, total, parameters.uniforms)
    return ids.gather(1, ranks[:, None])[:, 0]


def kept_ranks(
    ranked: torch.Tensor, cumulative: torch.Tensor, mass: torch.Tensor, parameters: SamplingParameters
) -> torch.Tensor:
    """How many of the most likely tokens each row keeps, at least 1. `mass` [m] is that of the whole row."""
    width = ranked.shape[1]
    by_k = torch.where(parameters.top_k > 0, parameters.top_k, width).clamp(max=width)
    within_k = torch.where(parameters.top_k > 0, cumulative.gather(1, by_k[:, None] - 1)[:, 0], mass)
    before = cumulative - ranked.double()
    by_p = torch.where(parameters.top_p < 1, (before < (parameters.top_p.double() * within_k)[:, None]).sum(-1), width)
    by_min = (ranked >= parameters.min_p[:, None] * ranked[:, :1]).sum(-1)
    return torch.minimum(torch.minimum(by_k, by_p), by_min).clamp(min=1)


def draw(cumulative: torch.Tensor, uniforms: torch.Tensor) -> torch.Tensor:
    return draw_below(cumulative, cumulative[:, -1:], uniforms)


def draw_below(cumulative: torch.Tensor, total: torch.Tensor, uniforms: torch.Tensor) -> torch.Tensor:
    """First index whose cumulative weight exceeds u * total; never one past `total`, nor one of weight zero."""
    # u * total may round up to total itself: step back to the largest number below it.
    below = torch.nextafter(total, torch.zeros_like(total))
    target = torch.minimum(uniforms[:, None] * total, below)
    return torch.searchsorted(cumulative, target, right=True)[:, 0]


def log_probabilities(
    logits: torch.Tensor, tokens: torch.Tensor, top: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    normaliser = logits.logsumexp(-1, keepdim=True)
    best, ids = logits.topk(top, dim=-1)
    return (logits.gather(1, tokens[:, None]) - normaliser)[:, 0], ids, best - normaliser
