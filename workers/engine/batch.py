"""From the scheduler's chunks to the flat tensors of a forward pass."""

from __future__ import annotations

import torch

from workers.engine.scheduler import Chunk
from workers.models.base import Batch, Segment


def build_batch(chunks: list[Chunk], look_back: int = 0) -> tuple[Batch, list[Chunk]]:
    """The batch, each segment with the `look_back` ids before it, and the chunks whose last row gets logits (those that
    reach the end of what is committed), in row order.
    """
    tokens: list[int] = []
    positions: list[int] = []
    segments: list[Segment] = []
    logit_rows: list[int] = []
    sampling: list[Chunk] = []
    for chunk in chunks:
        sequence = chunk.sequence
        first, end = sequence.computed, sequence.computed + chunk.count
        assert sequence.seat is not None, "only a request with a seat runs"
        segments.append(
            Segment(
                start=len(tokens),
                count=chunk.count,
                context=first,
                slots=sequence.slots,
                seat=sequence.seat,
                paged_from=sequence.paged_from,
                rings_from=sequence.rings_from,
                prompt=sequence.prompt_tokens,
                before=tuple(sequence.tokens[max(0, first - look_back) : first]),
            )
        )
        tokens.extend(sequence.tokens[first:end])
        positions.extend(range(first, end))
        if end == len(sequence.tokens):
            logit_rows.append(len(tokens) - 1)
            sampling.append(chunk)
    batch = Batch(
        tokens=torch.tensor(tokens),
        positions=torch.tensor(positions),
        segments=segments,
        logit_rows=torch.tensor(logit_rows, dtype=torch.int64),
    )
    return batch, sampling
