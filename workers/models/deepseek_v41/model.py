"""The forward pass of one sequence (V4.1 specification, sections 2, 5.4 and 10.1).

```
R = embed[tokens] in n streams; pre = stream 0
for each layer: Engram, attention and MoE inside hyper-connections
logits = head( rms(sum_k pre[k] R[k]; norm) )
```
Three values travel down the stack within a forward: the latents of the current KV owner, the selection of the current
index owner, the candidate blocks. Nothing crosses forwards but the cache.

Trimmed prefill: layers up to `cut` write their rows for every token; from the attention of layer `cut` on, only rows
of the tail (the last W of the *prompt*, however it was cut into chunks) go on, and windows of layers after `cut` are
floored at the tail's first position. `mask` computes the dropped rows too and narrows what the tail's rows see: it
must agree with `compact` in the rows kept.
"""

import enum
from dataclasses import dataclass

import torch

from kernels.quantization import Rows, Weight
from workers.models.base import CacheSpec
from workers.models.deepseek_v41.attention import window_index
from workers.models.deepseek_v41.cache import SequenceCache
from workers.models.deepseek_v41.cache_spec import build_cache_spec
from workers.models.deepseek_v41.config import IMAGE_ID_COUNT, DeepseekV41Config
from workers.models.deepseek_v41.dspark import DSpark
from workers.models.deepseek_v41.engram import EngramHash
from workers.models.deepseek_v41.errors import ConfigError
from workers.models.deepseek_v41.formats import CacheFormats
from workers.models.deepseek_v41.hyper_connections import open_streams
from workers.models.deepseek_v41.inputs import check_ids
from workers.models.deepseek_v41.layer import Layer, Streams
from workers.models.deepseek_v41.norm import rms_norm, widen
from workers.models.deepseek_v41.rope import Rotary
from workers.models.deepseek_v41.weights import WeightShelf


class Trim(enum.StrEnum):
    """What prefill does after layer `cut` with the rows before the prompt's tail."""

    OFF = "off"
    MASK = "mask"
    COMPACT = "compact"


@dataclass(frozen=True, slots=True)
class Tail:
    """Where the tail of the prompt begins, and how the rest is treated."""

    start: int
    trim: Trim


@dataclass(frozen=True, slots=True)
class Forward:
    """What a pass gave: logits [kept, vocabulary] of the rows at positions first.., rows per expert [layers, experts].

    All rows are kept unless the tail was trimmed compactly; then a chunk before the tail keeps none.
    """

    first: int
    logits: torch.Tensor
    expert_counts: torch.Tensor


@dataclass(slots=True)
class _Rows:
    """The rows on their way down the stack, and what travels with them."""

    positions: torch.Tensor
    is_image_id: torch.Tensor
    selection: torch.Tensor | None = None
    candidates: torch.Tensor | None = None

    def keep(self, rows: torch.Tensor) -> "_Rows":
        # Only called at layer `cut`, before it selects: a selection made above it is of no use after it.
        return _Rows(self.positions[rows], self.is_image_id[rows])


class DeepseekV41:
    """The model, for one sequence at a time. `weights` as `loading.load` gives them; they are taken over."""

    def __init__(
        self, config: DeepseekV41Config, weights: dict[str, Weight], token_map: torch.Tensor, *, draft: bool = True
    ) -> None:
        shelf = WeightShelf(weights)
        self.config = config
        self.embed, self.head = shelf.weight("embed"), shelf.weight("head")
        self.norm = shelf.vector("norm")
        self.hashes = EngramHash(config, token_map)
        plain, long = Rotary.of_window_layers(config), Rotary.of_latent_layers(config)
        self.layers = [
            Layer(config, shelf, layer, long if config.ratio(layer) else plain)
            for layer in range(config.num_hidden_layers)
        ]
        self.drafter: DSpark | None = None
        if draft and config.num_nextn_predict_layers:
            self.drafter = DSpark(config, shelf, plain, self.embed, self.head)
        assert not shelf.left(), f"weights nobody took: {shelf.left()[:3]}"

    @property
    def dtype(self) -> torch.dtype:
        return self.embed.data.dtype

    def new_cache(self, formats: CacheFormats) -> SequenceCache:
        return SequenceCache(self.config, formats, self.dtype, self.embed.data.device)

    def cache_spec(self, formats: CacheFormats) -> CacheSpec:
        return build_cache_spec(self.config, formats, self.dtype)

    def check_input(self, ids: torch.Tensor, start: int = 0) -> None:
        """Raise `InputError` for ids outside the vocabulary or past the context."""
        check_ids(self.config, ids.tolist(), start)

    def tail(self, prompt_tokens: int, trim: Trim) -> Tail | None:
        """The tail of a prompt; None where nothing is trimmed. Raises `ConfigError` if the layers do not allow it."""
        if trim is Trim.OFF or prompt_tokens <= self.config.sliding_window:
            return None
        if not self.config.can_trim:
            raise ConfigError("prefill cannot be trimmed: an Engram or candidate source lies after the last KV source")
        return Tail(prompt_tokens - self.config.sliding_window, trim)

    @torch.inference_mode()
    def forward(self, ids: torch.Tensor, cache: SequenceCache, tail: Tail | None = None) -> Forward:
        """Process ids int64 [T] at positions cache.length.. and extend the cache. `tail` for (chunks of) a prompt."""
        c = self.config
        start = cache.length
        self.check_input(ids, start)
        cache.append_ids(ids)
        engram_rows = self.hashes(cache.ids, start)
        rows = _Rows(
            torch.arange(start, start + len(ids), device=ids.device),
            (ids >= c.image_token_id) & (ids < c.image_token_id + IMAGE_ID_COUNT),
        )
        is_image = ids == c.image_token_id
        streams = Streams(*open_streams(self.embed.rows(ids, self.dtype), c.hc_mult))
        aux: list[torch.Tensor] = []
        counts = []
        for number, layer in enumerate(self.layers):
            if number in c.dspark_target_layer_ids:
                aux.append(streams.residual.mean(1))
            if layer.engram is not None:
                table = c.engram_layer_ids.index(number)
                streams = Streams(layer.engram(streams.residual, engram_rows[:, table], is_image), streams.pre)
            x = layer.attention_input(streams)
            window = cache.windows[number]
            first = int(rows.positions[0]) if len(rows.positions) else start
            run = window.extend(
                first, layer.attention.window_rows(x, rows.positions, cache.formats), c.sliding_window - 1
            )
            if layer.compressor is not None:
                self._write_paged(number, x, start, cache)
            if number == c.cut and tail is not None and tail.trim is Trim.COMPACT:
                kept = (rows.positions >= tail.start).nonzero()[:, 0]
                rows, streams, x, aux = rows.keep(kept), streams.keep(kept), x[kept], [a[kept] for a in aux]
                is_image = is_image[kept]
            if not len(x):
                break
            mix = layer.hc_attn.mix(streams.residual)
            ql = layer.attention.low_rank_queries(x)
            floor = self._floor(rows.positions, number, tail)
            sources = [(run.rows, window_index(rows.positions, run.first, c.sliding_window, floor))]
            if c.ratio(number):
                sources.append(self._latent_source(number, x, ql, rows, cache))
            attended = layer.attention(ql, rows.positions, sources)
            streams, counted = layer.finish(streams, mix, attended, rows.is_image_id)
            counts.append(counted)
        cache.length = start + len(ids)
        cache.paged_tokens = max(cache.paged_tokens, cache.length)
        if self.drafter is not None and len(rows.positions):
            self.drafter.write_context(torch.cat(aux, dim=-1), int(rows.positions[0]), cache)
        return self._result(streams, rows, counts, start)

    def _write_paged(self, number: int, x: torch.Tensor, start: int, cache: SequenceCache) -> None:
        """Write the latents and index keys of the groups that these rows complete and the cache does not have yet."""
        compressor = self.layers[number].compressor
        assert compressor is not None
        projected = compressor.project(x)
        begin = max(start, cache.paged_tokens)
        group = begin - begin % compressor.ratio
        if group < start:
            tokens = torch.cat((cache.open_groups[number].at(group), projected))
        else:
            tokens = projected[group - start :]
        closed = compressor.close(tokens, group, x.dtype, cache.formats)
        cache.latents[number].write(closed.first, closed.latents)
        cache.index_keys[number].write(closed.first, closed.index_keys)
        if number in cache.open_groups:
            cache.open_groups[number].write(start, projected)

    def _floor(self, positions: torch.Tensor, number: int, tail: Tail | None) -> torch.Tensor | int:
        """The first position that each query may see in this layer's window."""
        if tail is None or number <= self.config.cut:
            return 0
        return torch.where(positions >= tail.start, tail.start, 0)

    def _latent_source(
        self, number: int, x: torch.Tensor, ql: torch.Tensor, rows: _Rows, cache: SequenceCache
    ) -> tuple[Rows, torch.Tensor]:
        """The latents this layer reads and which of them each query sees; index sources choose anew."""
        layer, owner = self.layers[number], self.config.kv_owner(number)
        assert owner is not None
        visible = (rows.positions + 1) // self.config.ratio(number)
        groups = int(visible.max())
        if layer.indexer is not None:
            keys = cache.index_keys[owner].view(groups)
            choice = layer.indexer.choose(x, ql, rows.positions, keys, visible, rows.candidates, cache.formats)
            rows.selection, rows.candidates = choice.selection, choice.candidates
        assert rows.selection is not None
        return cache.latents[owner].view(groups), rows.selection

    def _result(self, streams: Streams, rows: _Rows, counts: list[torch.Tensor], start: int) -> Forward:
        c = self.config
        missing = c.num_hidden_layers - len(counts)
        none = rows.positions.new_zeros(c.n_routed_experts)
        first = int(rows.positions[0]) if len(rows.positions) else start
        hidden = rms_norm(streams.collapse(), self.norm, c.rms_norm_eps)
        return Forward(first, widen(self.head.linear(hidden)), torch.stack(counts + [none] * missing))
