"""The model: its weights, and what a pass over a batch gives (V4.1 specification, section 2).

```
R = embed[tokens] in n streams; pre = stream 0
for each layer: Engram, attention and MoE inside hyper-connections
logits = head( rms(sum_k pre[k] R[k]; norm) )
```
Nothing crosses passes but the caches. `forward` runs one sequence as a batch of one, on a cache of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from kernels import hyper_connections
from kernels.quantization import Weight
from workers.models.base import Batch, CacheSpec
from workers.models.deepseek_v41.cache import SequenceCache
from workers.models.deepseek_v41.cache_spec import build_cache_spec
from workers.models.deepseek_v41.config import DeepseekV41Config
from workers.models.deepseek_v41.dspark import Anchor, Draft, DSpark
from workers.models.deepseek_v41.engram import EngramHash
from workers.models.deepseek_v41.errors import ConfigError
from workers.models.deepseek_v41.formats import CacheFormats
from workers.models.deepseek_v41.forward_pass import ForwardPass
from workers.models.deepseek_v41.groups import INVARIANT_ROWS
from workers.models.deepseek_v41.inputs import check_ids
from workers.models.deepseek_v41.layer import Layer
from workers.models.deepseek_v41.layer_caches import LayerCaches
from workers.models.deepseek_v41.norm import widen
from workers.models.deepseek_v41.plan import Planner
from workers.models.deepseek_v41.tiling import Tiling
from workers.models.deepseek_v41.trim import Trim, tail_start
from workers.models.deepseek_v41.weights import Runtime, WeightShelf

__all__ = ["DeepseekV41", "Forward", "Step", "Tail", "Trim"]


@dataclass(frozen=True, slots=True)
class Tail:
    """Where the tail of the prompt begins, and how the rest is treated."""

    start: int
    trim: Trim


@dataclass(frozen=True, slots=True)
class Step:
    """logits [m, vocabulary] in at least float32, expert_counts int64 [layers, experts], layer_rows [layers]."""

    logits: torch.Tensor
    expert_counts: torch.Tensor
    layer_rows: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Forward:
    """What a pass gave: logits [kept, vocabulary] of the rows at positions first.., rows per expert [layers, experts].

    All rows are kept unless the tail was trimmed compactly; then a chunk before the tail keeps none.
    """

    first: int
    logits: torch.Tensor
    expert_counts: torch.Tensor


class DeepseekV41:
    """`weights` as `loading.load` gives them; they are taken over. `runtime`: how a served model multiplies."""

    def __init__(
        self,
        config: DeepseekV41Config,
        weights: dict[str, Weight],
        token_map: torch.Tensor,
        *,
        draft: bool = True,
        runtime: Runtime | None = None,
    ) -> None:
        shelf = WeightShelf(weights, runtime)
        self.config = config
        self.embed, self.head = shelf.weight("embed"), shelf.matrix("head")
        self.norm = shelf.vector("norm")
        self.hashes = EngramHash(config, token_map)
        self.layers = [Layer(config, shelf, layer) for layer in range(config.num_hidden_layers)]
        self.drafter: DSpark | None = None
        if draft and config.num_nextn_predict_layers:
            self.drafter = DSpark(config, shelf, self.embed, self.head)
        assert not shelf.left(), f"weights nobody took: {shelf.left()[:3]}"
        invariant = runtime is not None and runtime.batch_invariant
        self.tiling = Tiling(INVARIANT_ROWS if invariant else None)
        self.planner = Planner(config, self.dtype, invariant=invariant)

    @property
    def dtype(self) -> torch.dtype:
        return self.embed.data.dtype

    def new_cache(self, formats: CacheFormats) -> SequenceCache:
        return SequenceCache(self.config, formats, self.dtype)

    def cache_spec(self, formats: CacheFormats) -> CacheSpec:
        return build_cache_spec(self.config, formats, self.dtype)

    def check_input(self, ids: torch.Tensor, start: int = 0) -> None:
        """Raise `InputError` for ids outside the vocabulary or past the context."""
        check_ids(self.config, ids.tolist(), start)

    def tail(self, prompt_tokens: int, trim: Trim) -> Tail | None:
        """The tail of a prompt; None where nothing is trimmed. Raises `ConfigError` if the layers do not allow it."""
        if trim is Trim.OFF or prompt_tokens <= self.config.sliding_window:
            return None
        self.check_trim(trim)
        return Tail(tail_start(prompt_tokens, self.config.sliding_window), trim)

    def check_trim(self, trim: Trim) -> None:
        """Raise `ConfigError` if the layers do not allow it."""
        if trim is not Trim.OFF and not self.config.can_trim:
            raise ConfigError("prefill cannot be trimmed: an Engram or candidate source lies after the last KV source")

    @torch.inference_mode()
    def step(self, batch: Batch, caches: LayerCaches, trim: Trim) -> Step:
        """Run a flat batch and write its rows into the caches. Rows that are trimmed away have no logits."""
        c = self.config
        plan = self.planner.plan(batch, trim)
        forward = ForwardPass(c, self.layers, plan, caches, self.tiling)
        passed = forward.run(self.embed.rows(batch.tokens, self.dtype), self.hashes(plan.text), self.drafter)
        missing = c.num_hidden_layers - len(passed.experts)
        counts = [torch.bincount(chosen.flatten(), minlength=c.n_routed_experts) for chosen in passed.experts]
        counts += [torch.zeros(c.n_routed_experts, dtype=torch.int64)] * missing
        (logits,) = self.tiling(self._read_out, *self._wanted(passed.residual, passed.pre, batch, plan.kept))
        return Step(logits, torch.stack(counts), tuple(len(chosen) for chosen in passed.experts) + (0,) * missing)

    def _wanted(
        self, residual: torch.Tensor, pre: torch.Tensor, batch: Batch, kept: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        rows = batch.logit_rows
        if kept is not None:
            place = torch.searchsorted(kept, rows)
            if len(rows) and not (len(kept) and torch.equal(kept[place.clamp(max=len(kept) - 1)], rows)):
                raise ValueError("logits are wanted of rows before the tail, which a trimmed prefill does not compute")
            rows = place
        if len(rows) == len(residual):
            return residual, pre
        return residual[rows], pre[rows]

    def _read_out(self, residual: torch.Tensor, pre: torch.Tensor) -> tuple[torch.Tensor]:
        hidden = hyper_connections.collapse_norm(residual, pre, self.norm, self.config.rms_norm_eps)
        return (widen(self.head.linear(hidden)),)

    def draft(self, anchor: int, cache: SequenceCache, temperatures: Sequence[float] | None = None) -> Draft:
        """Propose the tokens after `anchor`, which stands at position `cache.length`. See `DSpark.draft`."""
        assert self.drafter is not None, "the model was loaded without its draft stages"
        return self.drafter.draft(Anchor(anchor, cache.length, floor=cache.begin), cache.layers, temperatures)

    def forward(self, ids: torch.Tensor, cache: SequenceCache, tail: Tail | None = None) -> Forward:
        """Process ids int64 [T] at positions cache.length.. and extend the cache. `tail` for (chunks of) a prompt."""
        start = cache.length
        self.check_input(ids, start)
        if not len(ids):
            counts = torch.zeros((self.config.num_hidden_layers, self.config.n_routed_experts), dtype=torch.int64)
            return Forward(start, torch.empty((0, self.config.vocab_size)), counts)
        dropped = 0
        if tail is not None and tail.trim is Trim.COMPACT:
            dropped = min(len(ids), max(0, tail.start - start))
        segment = cache.start(ids, None if tail is None else tail.start)
        batch = Batch(
            tokens=ids,
            positions=torch.arange(start, start + len(ids)),
            segments=[segment],
            logit_rows=torch.arange(dropped, len(ids)),
        )
        step = self.step(batch, cache.layers, Trim.OFF if tail is None else tail.trim)
        cache.commit(len(ids))
        return Forward(start + dropped if dropped < len(ids) else start, step.logits, step.expert_counts)
