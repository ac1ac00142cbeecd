"""Attention over chosen rows, and how they are chosen, in plain torch (V4.1 specification, sections 5.1 and
5.3).
"""

from collections.abc import Sequence

import torch

from kernels.sparse_attention.sources import Source

# Gathered keys are [rows, keys, d]; rows are taken in slices of at most this many elements.
SLICE_ELEMENTS = 2**21


def widen(x: torch.Tensor) -> torch.Tensor:
    return x if x.dtype in (torch.float32, torch.float64) else x.float()


def sparse_attention(
    queries: torch.Tensor,
    sources: Sequence[Source],
    bias: torch.Tensor,
    sink: torch.Tensor,
    scale: float,
) -> torch.Tensor:
    count, _, channels = queries.shape
    step = max(1, SLICE_ELEMENTS // max(1, bias.shape[1] * channels))
    if count <= step:
        return _attend(queries, [source.keys(0, count) for source in sources], bias, sink, scale)
    return torch.cat(
        [
            _attend(
                queries[i : i + step],
                [source.keys(i, i + step) for source in sources],
                bias[i : i + step],
                sink,
                scale,
            )
            for i in range(0, count, step)
        ]
    )


def _attend(
    queries: torch.Tensor, parts: list[torch.Tensor], bias: torch.Tensor, sink: torch.Tensor, scale: float
) -> torch.Tensor:
    wide = widen(queries)
    keys = widen(parts[0] if len(parts) == 1 else torch.cat(parts, dim=1))
    logits = torch.baddbmm(bias[:, None], wide, keys.transpose(1, 2), alpha=scale)
    with_sink = torch.cat((logits, sink.to(wide.dtype)[None, :, None].expand(len(wide), -1, 1)), dim=-1)
    weights = torch.softmax(with_sink, dim=-1)[..., :-1]
    return torch.bmm(weights, keys).to(queries.dtype)


def index_scores(
    queries: torch.Tensor, weights: torch.Tensor, keys: torch.Tensor, visible: torch.Tensor, key_tile: int | None
) -> torch.Tensor:
    position = torch.arange(keys.shape[-2], device=keys.device)
    if key_tile is None:
        scores = _scores(queries, weights, keys)
    else:
        padded = torch.nn.functional.pad(keys, (0, 0, 0, -keys.shape[-2] % key_tile))
        parts = [_scores(queries, weights, part.contiguous()) for part in padded.split(key_tile, dim=-2)]
        scores = torch.cat(parts, dim=-1)[..., : len(position)]
    return scores.masked_fill(position >= visible[..., None], -torch.inf)


def _scores(queries: torch.Tensor, weights: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    products = torch.matmul(widen(queries).flatten(-3, -2), widen(keys).transpose(-1, -2)).relu_()
    products = products.unflatten(-2, queries.shape[-3:-1])
    # Adding +0 turns -0 into 0, so that no order can tell two zeros apart.
    return torch.matmul(weights.to(products.dtype)[..., None, :], products).squeeze(-2) + 0.0


def _top(scores: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The `count` largest by (score, lowest index first): (values, indices), both [..., min(count, last
    axis)].
    """
    ordered = scores.sort(dim=-1, descending=True, stable=True)
    return ordered.values[..., :count], ordered.indices[..., :count]


def select_positions(scores: torch.Tensor, count: int) -> torch.Tensor:
    values, indices = _top(scores, count)
    chosen = values > -torch.inf
    past_the_end = scores.shape[-1]
    ascending = indices.masked_fill(~chosen, past_the_end).sort(dim=-1).values
    return ascending.masked_fill(ascending == past_the_end, -1)


def block_scores(scores: torch.Tensor, visible: torch.Tensor, block_size: int) -> torch.Tensor:
    """[..., blocks]: each block's best score, +inf for the block of the newest visible position."""
    padded = torch.nn.functional.pad(scores, (0, -scores.shape[-1] % block_size), value=-torch.inf)
    best = padded.unflatten(-1, (-1, block_size)).amax(-1)
    blocks = torch.arange(best.shape[-1], device=scores.device)
    newest = torch.div(visible - 1, block_size, rounding_mode="floor")
    return best.masked_fill(blocks == newest[..., None], torch.inf)


def best_blocks(best: torch.Tensor, count: int) -> torch.Tensor:
    values, indices = _top(best, count)
    kept = torch.zeros_like(best, dtype=torch.bool)
    return kept.scatter(-1, indices, values > -torch.inf)


def restrict_to_blocks(scores: torch.Tensor, blocks: torch.Tensor, block_size: int) -> torch.Tensor:
    allowed = blocks.repeat_interleave(block_size, dim=-1)[..., : scores.shape[-1]]
    return scores.masked_fill(~allowed, -torch.inf)
