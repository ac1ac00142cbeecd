"""V4.1 for the engine: `workers.models.base.CausalModel` over a checkpoint folder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from workers.models.base import Batch, CacheSpec, CacheViews, ModelOutput
from workers.models.deepseek_v41.config import DeepseekV41Config
from workers.models.deepseek_v41.formats import CacheFormats
from workers.models.deepseek_v41.layer_caches import LayerCaches
from workers.models.deepseek_v41.loading import LoadOptions, load
from workers.models.deepseek_v41.model import DeepseekV41
from workers.models.deepseek_v41.replay import replay_start
from workers.models.deepseek_v41.trim import Trim
from workers.models.deepseek_v41.weights import Runtime
from workers.models.safetensors_stream import LoadProgress


@dataclass(frozen=True, slots=True)
class ServingOptions:
    """`cache_formats` None takes what the checkpoint was trained with."""

    weight_format: str = "fp32"
    batch_invariant: bool = False
    trim: Trim = Trim.COMPACT
    cache_formats: CacheFormats | None = None
    draft: bool = True


class ServedDeepseekV41:
    """One model, any number of requests. `forward` is called by one thread at a time."""

    def __init__(self, model: DeepseekV41, options: ServingOptions) -> None:
        """Raises `ConfigError` where the layers do not allow the trim."""
        model.check_trim(options.trim)
        config = model.config
        self.model, self.config, self.trim = model, config, options.trim
        trained = CacheFormats.TRAINED if config.trains_packed_caches else CacheFormats.FLOAT
        self.cache_formats = options.cache_formats or trained
        self.vocab_size = config.vocab_size
        self.max_context = config.max_position_embeddings
        self.weight_format = options.weight_format
        self.batch_invariant = options.batch_invariant
        self.look_back = config.engram_max_ngram_size - 1 if config.engram_layer_ids else 0
        self._caches: LayerCaches | None = None

    def cache_spec(self) -> CacheSpec:
        spec = self.model.cache_spec(self.cache_formats)
        # Layers after the last KV source need windows that nobody keeps, where their rows are not trimmed to the tail.
        return replace(spec, stored_windows=None) if self.trim is Trim.OFF else spec

    def resume_from(self, hit: int, prompt: int) -> int:
        """By recompute: no window rows of the hit are at hand. See `replay` for the rule, and for stored rows."""
        return replay_start(self.config, hit, prompt, stored_rows=False, trimmed=self.trim is not Trim.OFF)

    def forward(self, batch: Batch, cache: CacheViews) -> ModelOutput:
        if self._caches is None or self._caches.views is not cache:
            self._caches = LayerCaches(self.config, self.cache_formats, cache)
        step = self.model.step(batch, self._caches, self.trim)
        return ModelOutput(logits=step.logits.float(), layer_rows=step.layer_rows, expert_counts=step.expert_counts)


def load_served(
    folder: Path,
    options: ServingOptions | None = None,
    progress: Callable[[LoadProgress], None] | None = None,
) -> ServedDeepseekV41:
    """Raises `CheckpointError` (its subclasses name the key, the tensors or the token map), before weights are read,
    and `KeyError` for an unknown weight format.
    """
    options = options or ServingOptions()
    runtime = Runtime(options.weight_format, options.batch_invariant)
    return ServedDeepseekV41(load(folder, LoadOptions(draft=options.draft), progress, runtime), options)


def default_trim(config: DeepseekV41Config) -> Trim:
    """The trimmed tail where the layers allow it."""
    return Trim.COMPACT if config.can_trim else Trim.OFF
