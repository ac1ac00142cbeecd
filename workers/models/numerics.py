"""Run a checkpoint on token ids and give its numbers, to compare with any other implementation. Either family."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from workers.models.base import Batch, Segment
from workers.models.deepseek_v41.config import DeepseekV41Config
from workers.models.deepseek_v41.errors import InputError
from workers.models.deepseek_v41.formats import CacheFormats
from workers.models.deepseek_v41.inputs import check_ids
from workers.models.deepseek_v41.loading import LoadOptions, load
from workers.models.deepseek_v41.model import Trim
from workers.models.deepseek_v41.prefill import prefill
from workers.models.inspection import GGUF_INDEX_NAME, is_v41, read_config
from workers.models.safetensors_index import CheckpointError
from workers.models.safetensors_stream import LoadProgress

if TYPE_CHECKING:
    from workers.models.llama.config import LlamaConfig
    from workers.models.llama.model import LlamaModel


@dataclass(frozen=True, slots=True)
class NumericsOptions:
    """`cache_formats` None takes what the checkpoint was trained with. Llama has neither trims nor formats nor
    drafts.
    """

    trim: Trim = Trim.OFF
    cache_formats: CacheFormats | None = None
    draft: bool = False
    dtype: torch.dtype = torch.float32
    keep_quantized: bool = False
    chunk: int | None = None


@dataclass(frozen=True, slots=True)
class Numerics:
    """`tensors`: logits float32 [kept, vocabulary] of positions first_position.., expert_counts int64 [layers, experts]

    (no experts for Llama), and with a draft draft_tokens int64 [G] and draft_confidence float32 [G].
    """

    first_position: int
    tensors: dict[str, torch.Tensor]


def run(
    folder: Path, ids: list[int], options: NumericsOptions, progress: Callable[[LoadProgress], None] | None = None
) -> Numerics:
    """Load the checkpoint and run the ids as one prompt.

    Raises `CheckpointError` for the checkpoint, and `InputError` for ids or options that do not fit it, before weights
    are read.
    """
    if not ids:
        raise InputError("there are no token ids")
    if (folder / GGUF_INDEX_NAME).is_file() or not is_v41(read_config(folder)):
        return _run_llama(folder, ids, options)
    config = DeepseekV41Config.from_folder(folder)
    check_ids(config, ids)
    if options.draft and not config.num_nextn_predict_layers:
        raise InputError("the checkpoint has no draft stages")
    if options.trim is not Trim.OFF and not config.can_trim:
        raise InputError("prefill cannot be trimmed: an Engram or candidate source lies after the last KV source")
    load_options = LoadOptions(dtype=options.dtype, keep_quantized=options.keep_quantized, draft=options.draft)
    model = load(folder, load_options, progress)
    trained = CacheFormats.TRAINED if config.trains_packed_caches else CacheFormats.FLOAT
    cache = model.new_cache(options.cache_formats or trained)
    result = prefill(model, torch.tensor(ids), cache, options.trim, options.chunk)
    tensors = {"logits": result.logits.float(), "expert_counts": result.expert_counts}
    if options.draft:
        assert model.drafter is not None
        draft = model.draft(int(result.logits[-1].argmax()), cache)
        tensors |= {"draft_tokens": draft.tokens, "draft_confidence": draft.confidence.float()}
    return Numerics(result.first, tensors)


def _run_llama(folder: Path, ids: list[int], options: NumericsOptions) -> Numerics:
    from workers.models.gguf_file import GGUFError
    from workers.models.gguf_index import read_index as read_gguf_index
    from workers.models.llama.config import ConfigError as LlamaConfigError
    from workers.models.llama.config import LlamaConfig
    from workers.models.llama.loading import load_llama
    from workers.spec import WeightFormat

    formats = {torch.float32: WeightFormat.FP32, torch.bfloat16: WeightFormat.BF16}
    if options.trim is not Trim.OFF or options.draft or options.cache_formats is CacheFormats.TRAINED:
        raise InputError("a Llama model has no trimmed prefill, no drafts and no trained cache formats")
    if options.dtype not in formats:
        raise InputError(f"a Llama model runs in float32 or bfloat16, not {options.dtype}")
    try:
        if (folder / GGUF_INDEX_NAME).is_file():
            config = read_gguf_index(folder).config
        else:
            config = LlamaConfig.from_hf(read_config(folder))
        _check_llama_ids(config, ids)
        model = load_llama(folder, weight_format=formats[options.dtype])
    except (LlamaConfigError, GGUFError) as error:
        raise CheckpointError(f"{folder}: {error}") from error
    logits = _llama_logits(model, torch.tensor(ids), options.chunk or len(ids))
    return Numerics(0, {"logits": logits, "expert_counts": torch.zeros((model.config.layers, 0), dtype=torch.int64)})


def _check_llama_ids(config: "LlamaConfig", ids: list[int]) -> None:
    if len(ids) > config.max_context:
        raise InputError(f"{len(ids):,} tokens are more than the context of {config.max_context:,}")
    wrong = next((i for i, token in enumerate(ids) if not 0 <= token < config.vocab_size), None)
    if wrong is not None:
        raise InputError(f"token {wrong} is {ids[wrong]}, outside the vocabulary of {config.vocab_size:,}")


def _llama_logits(model: "LlamaModel", ids: torch.Tensor, chunk: int) -> torch.Tensor:
    """float32 [tokens, vocabulary], through a pool of just the blocks that the ids need."""
    from workers.engine.layout import CacheLayout

    layout = CacheLayout(model.cache_spec())
    blocks = layout.blocks_for(len(ids))
    views = layout.views(torch.zeros((blocks, layout.block_bytes), dtype=torch.uint8))
    parts = []
    for context in range(0, len(ids), chunk):
        part = ids[context : context + chunk]
        batch = Batch(
            tokens=part,
            positions=torch.arange(context, context + len(part)),
            segments=[Segment(start=0, count=len(part), context=context, slots=list(range(blocks)))],
            logit_rows=torch.arange(len(part)),
        )
        parts.append(model.forward(batch, views).logits)
    return torch.cat(parts)
