"""Attention over chosen rows, and how they are chosen, in plain torch (V4.1 specification, sections 5.1 and
5.3).
"""

from collections.abc import Sequence

import torch

from kernels.quantization import Rows, decode_rows

# Gathered keys are [rows, keys, d]; rows are taken in slices of at most this many elements.
SLICE_ELEMENTS = 2**24


def widen(x: torch.Tensor) -> torch.Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))


def sparse_attention(
    queries: torch.Tensor,
    sources: Sequence[tuple[Rows, torch.Tensor]],
    sink: torch.Tensor,
    scale: float,
) -> torch.Tensor:
    keys_per_row = sum(index.shape[1] for _, index in sources)
    step = max(1, SLICE_ELEMENTS // max(1, keys_per_row * queries.shape[2]))
    if len(queries) <= step:
        return _attend(queries, sources, sink, scale)
    parts = [
        _attend(queries[i : i + step], [(rows, index[i : i + step]) for rows, index in sources], sink, scale)
        for i in range(0, len(queries), step)
    ]
    return torch.cat(parts)


def _attend(
    queries: torch.Tensor,
    sources: Sequence[tuple[Rows, torch.Tensor]],
    sink: torch.Tensor,
    scale: float,
) -> torch.Tensor:
    wide = widen(queries)
    sources = [(rows, index) for rows, index in sources if len(rows) and index.shape[1]]
    if not sources:
        return torch.zeros_like(queries)
    keys = torch.cat([decode_rows(rows.take(index.clamp(min=0)), wide.dtype) for rows, index in sources], dim=1)
    visible = torch.cat([index >= 0 for _, index in sources], dim=1)
    # A hidden slot gathers row 0, which may be memory nobody has written: multiply by exact zeros, never by
    # weights.
    keys = keys.masked_fill(~visible[..., None], 0.0)
    logits = torch.einsum("thd,tkd->thk", wide, keys) * scale
    logits = logits.masked_fill(~visible[:, None], -torch.inf)
    sink = sink.to(wide.dtype)[None, :]
    top = torch.maximum(logits.amax(-1), sink)
    weights = torch.exp(logits - top[..., None])
    total = weights.sum(-1) + torch.exp(sink - top)
    return (torch.einsum("thk,tkd->thd", weights, keys) / total[..., None]).to(queries.dtype)


def index_scores(
    queries: torch.Tensor, weights: torch.Tensor, keys: torch.Tensor, visible: torch.Tensor
) -> torch.Tensor:
    products = torch.relu(torch.einsum("...thd,...jd->...thj", widen(queries), widen(keys)))
    # Adding +0 turns -0 into 0, so that no sort can tell two zeros apart.
    scores = torch.einsum("...thj,...th->...tj", products, weights.to(products.dtype)) + 0.0
    position = torch.arange(keys.shape[-2], device=keys.device)
    return scores.masked_fill(position >= visible[..., None], -torch.inf)


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


def candidate_blocks(scores: torch.Tensor, visible: torch.Tensor, block_size: int, count: int) -> torch.Tensor:
    length = scores.shape[-1]
    padded = torch.nn.functional.pad(scores, (0, -length % block_size), value=-torch.inf)
    best = padded.unflatten(-1, (-1, block_size)).amax(-1)
    blocks = torch.arange(best.shape[-1], device=scores.device)
    newest = torch.div(visible - 1, block_size, rounding_mode="floor")
    best = best.masked_fill(blocks == newest[..., None], torch.inf)
    values, indices = _top(best, count)
    kept = torch.zeros_like(best, dtype=torch.bool)
    return kept.scatter(-1, indices, values > -torch.inf)


def restrict_to_blocks(scores: torch.Tensor, blocks: torch.Tensor, block_size: int) -> torch.Tensor:
    allowed = blocks.repeat_interleave(block_size, dim=-1)[..., : scores.shape[-1]]
    return scores.masked_fill(~allowed, -torch.inf)
