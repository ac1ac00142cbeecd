"""One forward pass of a step: the scheduler's chunks in, one sampled token for each that reached its end out."""

from __future__ import annotations

from workers.engine.batch import build_batch
from workers.engine.sampler import Sampled, sample_rows
from workers.engine.scheduler import Chunk
from workers.engine.sequence import Phase
from workers.models.base import CacheViews, CausalModel


class ForwardPasses:
    """Runs the model and counts what it ran."""

    def __init__(self, model: CausalModel, views: CacheViews) -> None:
        self._model = model
        self._views = views
        self.steps = 0
        self.computed_tokens = 0
        """Rows of prompts, recomputed ones included."""
        self.rows_saved: tuple[int, ...] = ()
        """By layer: how many rows of the batches so far did not go through it."""

    def run(self, chunks: list[Chunk]) -> list[tuple[Chunk, Sampled]]:
        """The chunks that end at the last committed token, each with the token that follows it. What was computed is
        the caller's to note in the sequences.
        """
        batch, sampling = build_batch(chunks, self._model.look_back)
        output = self._model.forward(batch, self._views)
        sampled = sample_rows(output.logits, [chunk.sequence for chunk in sampling])
        self.steps += 1
        self._note_rows(len(batch.tokens), output.layer_rows)
        self.computed_tokens += sum(chunk.count for chunk in chunks if chunk.sequence.phase is Phase.PREFILL)
        return list(zip(sampling, sampled, strict=True))

    def _note_rows(self, rows: int, layer_rows: tuple[int, ...]) -> None:
        before = self.rows_saved or (0,) * len(layer_rows)
        self.rows_saved = tuple(known + rows - ran for known, ran in zip(before, layer_rows, strict=True))
