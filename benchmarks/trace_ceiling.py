"""What a cache can save at most, in layer-rows.

New rows go through all layers up to the last KV source (`cut`), the last W rows of a prompt through the rest. A prompt
with fewer than W new rows runs W.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from benchmarks import traces
from workers.models.base import CausalModel

OFFICIAL_LAYERS, OFFICIAL_CUT, OFFICIAL_WINDOW = 40, 20, 128


@dataclass(frozen=True, slots=True)
class Shape:
    """What the ceiling counts with: `early` layers that every new row needs, `late` ones that the last `window` do."""

    early: int
    late: int
    window: int

    def cold(self, tokens: int) -> int:
        """Layer-rows of a prompt of which nothing is cached."""
        return tokens * self.early + min(self.window, tokens) * self.late

    def warm(self, tokens: int, hit: int) -> int:
        rows = max(tokens - hit, min(self.window, tokens) if self.late else 0)
        return rows * self.early + min(self.window, tokens) * self.late


def shape_of(model: CausalModel) -> Shape:
    config = getattr(model, "config", None)
    layers = getattr(config, "num_hidden_layers", None)
    if layers is None:  # every layer needs every row
        return Shape(1, 0, 0)
    return Shape(config.cut + 1, layers - config.cut - 1, config.sliding_window)  # type: ignore[union-attr]


def full_length_speed_up(path: Path, *, requests: int | None, seed: int, overlap: int) -> float:
    """What the ceiling allows at the trace's own lengths (K = 1), official layers and W = B = 128."""
    trace = traces.load(path, requests=requests, seed=seed, overlap=overlap)
    shape = Shape(OFFICIAL_CUT + 1, OFFICIAL_LAYERS - OFFICIAL_CUT - 1, OFFICIAL_WINDOW)
    step = max(1, OFFICIAL_WINDOW // trace.block_tokens)
    seen: dict[int, set[int]] = {}
    cold = warm = 0
    for request in trace.requests:
        known = seen.setdefault(request.session, set())
        ends = request.blocks[step - 1 :: step]
        hit = next((n for n, block in enumerate(ends) if block not in known), len(ends)) * step * trace.block_tokens
        cold += shape.cold(request.input_tokens)
        warm += shape.warm(request.input_tokens, min(hit, request.input_tokens - 1))
        known.update(ends)
    return cold / warm
