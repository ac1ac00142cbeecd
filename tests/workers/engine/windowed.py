"""A real model of a few integers whose next token depends on everything that windows, states and blocks must bring.

Layer 0 mixes the last W token ids, layer 1 the last W values of layer 0; every value of layer 0 is also a paged row.
The next token follows from layer 1, from all paged rows and from the two ids before the last. Integers modulo a prime:
what should be equal is equal to the bit.
"""

from __future__ import annotations

import torch

from workers.models.base import (
    Batch,
    CacheSpec,
    CacheViews,
    ModelOutput,
    PagedGroup,
    Plane,
    Segment,
    StateSection,
    WindowGroup,
)

PRIME = 1_000_003
WINDOW = 4
BLOCK = 4
VOCABULARY = 97


class WindowedModel:
    vocab_size = VOCABULARY
    max_context = 512
    weight_format = "fp32"
    batch_invariant = True
    look_back = 2

    def cache_spec(self) -> CacheSpec:
        value = Plane("value", torch.int64, ())
        return CacheSpec(
            layout_version=5,
            block_tokens=BLOCK,
            paged=(PagedGroup("sources", (0,), 1, (value,)),),
            windows=(WindowGroup("ring", (0, 1), WINDOW + 1, (value,)),),
            states=(StateSection("last", 2, (value,)),),
        )

    def resume_from(self, hit: int, prompt: int) -> int:
        """Two windows of W - 1 predecessors below the hit."""
        return max(0, hit - 2 * (WINDOW - 1))

    def forward(self, batch: Batch, cache: CacheViews) -> ModelOutput:
        ends: dict[int, torch.Tensor] = {}
        tail_rows = 0
        for segment in batch.segments:
            for offset in range(segment.count):
                row = segment.start + offset
                ends[row] = self._token(segment, int(batch.tokens[row]), segment.context + offset, batch, cache)
                tail_rows += segment.context + offset >= segment.prompt - WINDOW
        logits = torch.stack([ends[row] for row in batch.logit_rows.tolist()]) if len(batch.logit_rows) else None
        return ModelOutput(
            logits=torch.empty(0, VOCABULARY) if logits is None else logits,
            layer_rows=(len(batch.tokens), tail_rows),
        )

    def _token(self, segment: Segment, token: int, position: int, batch: Batch, cache: CacheViews) -> torch.Tensor:
        paged = cache.paged("sources", 0, "value")
        last = cache.state("last", "value")[segment.seat]
        before = [*segment.before, *batch.tokens[segment.start : segment.start + position - segment.context].tolist()]
        if position > segment.rings_from:
            assert int(last) == before[-1], "the state is another request's"
        last.fill_(token)
        rings = [cache.window("ring", layer, "value")[segment.seat] for layer in (0, 1)]
        rings[0][position % (WINDOW + 1)] = token
        mixed = _mix(rings[0], position, segment.rings_from)
        rings[1][position % (WINDOW + 1)] = mixed
        if position >= segment.paged_from:
            paged[segment.slots[position // BLOCK], position % BLOCK] = (31 * mixed + 7) % PRIME
        rows = paged[segment.slots[: position // BLOCK + 1]].flatten()[: position + 1]
        total = int((rows * torch.arange(1, position + 2)).sum() % PRIME)
        value = _mix(rings[1], position, segment.rings_from) + total + sum(before[-2:]) * 13
        return -((torch.arange(VOCABULARY) - value) % VOCABULARY).float()


def _mix(ring: torch.Tensor, position: int, floor: int) -> int:
    seen = range(max(floor, position - WINDOW + 1), position + 1)
    return sum((position - at + 1) * int(ring[at % (WINDOW + 1)]) for at in seen) % PRIME
