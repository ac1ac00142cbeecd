"""DSpark: draft a block of tokens beside the model (V4.1 specification, section 11).

Context, for every committed token t: `a_t = concat over target layers of mean over streams of R at the layer's input`,
`c_t = rms(main_proj a_t; main_norm)`; every stage keeps the window row `RoPE(rms(wkv c_t; kv_norm), t)`.

Draft with anchor x_n at position n (not yet processed by the model): inputs [x_n, noise, ...] at n, n+1, ...; in each
stage every query sees the context rows max(0, n-W)..n-1 and all rows of the block. After the last stage
`h_i = sum_k pre[k] R_i[k]`, `U_i = head(rms(h_i; norm))`. Markov head, i = 0, 1, ..., y_{-1} = x_n:
`e_i = markov.embed[y_{i-1}]`, `y_i = argmax(U_i + markov.head e_i)`, `confidence_i = sigmoid(proj [h_i ; e_i] / T_i)`.
Row i proposes the token at position n+i+1. Greedy, one request.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from kernels.quantization import Rows, Weight
from workers.models.deepseek_v41.cache import SequenceCache
from workers.models.deepseek_v41.config import DeepseekV41Config
from workers.models.deepseek_v41.hyper_connections import open_streams
from workers.models.deepseek_v41.layer import Streams, Sublayers
from workers.models.deepseek_v41.norm import rms_norm, widen
from workers.models.deepseek_v41.rope import Rotary
from workers.models.deepseek_v41.weights import WeightShelf


@dataclass(frozen=True, slots=True)
class Draft:
    """tokens int64 [G], confidence [G], logits [G, vocabulary] (of the draft distribution, Markov head included)."""

    tokens: torch.Tensor
    confidence: torch.Tensor
    logits: torch.Tensor


class DSpark:
    """The draft stages. Embedding and head are the model's."""

    def __init__(
        self, config: DeepseekV41Config, shelf: WeightShelf, rotary: Rotary, embed: Weight, head: Weight
    ) -> None:
        self.config, self.embed, self.head = config, embed, head
        experts, top_k = config.dspark_n_routed_experts, config.dspark_num_experts_per_tok
        self.main_proj = shelf.weight("mtp.0.main_proj")
        self.main_norm = shelf.vector("mtp.0.main_norm")
        self.stages = [
            Sublayers(config, shelf, f"mtp.{s}", rotary, experts=experts, top_k=top_k, image_bias=False)
            for s in range(config.num_nextn_predict_layers)
        ]
        last = f"mtp.{config.num_nextn_predict_layers - 1}"
        self.norm = shelf.vector(f"{last}.norm")
        self.markov_embed = shelf.weight(f"{last}.markov_head.embed")
        self.markov_head = shelf.weight(f"{last}.markov_head.head")
        self.confidence_proj = shelf.weight(f"{last}.confidence_head.proj")

    def write_context(self, aux: torch.Tensor, first: int, cache: SequenceCache) -> None:
        """Leave the window rows of tokens at positions first.. in every stage. aux [T, targets * D]."""
        context = rms_norm(self.main_proj.linear(aux), self.main_norm, self.config.rms_norm_eps)
        positions = torch.arange(first, first + len(aux), device=aux.device)
        for stage, ring in zip(self.stages, cache.draft_windows, strict=True):
            ring.extend(first, stage.attention.window_rows(context, positions, cache.formats), 0)

    def draft(self, anchor: int, cache: SequenceCache, temperatures: Sequence[float] | None = None) -> Draft:
        """Propose the `dspark_block_size` tokens after `anchor`, which stands at position `cache.length`.

        `temperatures` calibrate the confidences, one per position. The cache is left as it is.
        """
        c = self.config
        size, start = c.dspark_block_size, cache.length
        ids = torch.full((size,), c.dspark_noise_token_id, device=cache.ids.device)
        ids[0] = anchor
        positions = torch.arange(start, start + size, device=ids.device)
        no_image = torch.zeros(size, dtype=torch.bool, device=ids.device)
        streams = Streams(*open_streams(self.embed.rows(ids, self.embed.data.dtype), c.hc_mult))
        for stage, ring in zip(self.stages, cache.draft_windows, strict=True):
            x = stage.attention_input(streams)
            mix = stage.hc_attn.mix(streams.residual)
            context = ring.span(max(ring.begin, start - c.sliding_window), start)
            block = stage.attention.window_rows(x, positions, cache.formats)
            sources: list[tuple[Rows, torch.Tensor]] = [
                (rows, torch.arange(len(rows), device=ids.device).expand(size, -1)) for rows in (context, block)
            ]
            attended = stage.attention(stage.attention.low_rank_queries(x), positions, sources)
            streams, _ = stage.finish(streams, mix, attended, no_image)
        return self._read_out(streams.collapse(), anchor, temperatures)

    def _read_out(self, hidden: torch.Tensor, anchor: int, temperatures: Sequence[float] | None) -> Draft:
        c = self.config
        base = widen(self.head.linear(rms_norm(hidden, self.norm, c.rms_norm_eps)))
        previous = torch.tensor(anchor, device=hidden.device)
        tokens, confidences, logits = [], [], []
        for i, (row, scores) in enumerate(zip(hidden, base, strict=True)):
            markov = self.markov_embed.rows(previous[None], hidden.dtype)
            biased = scores + widen(self.markov_head.linear(markov))[0]
            certainty = self.confidence_proj.linear(widen(torch.cat((row[None], markov), dim=-1)))[0, 0]
            confidences.append(torch.sigmoid(certainty / (temperatures[i] if temperatures else 1.0)))
            previous = biased.argmax()
            tokens.append(previous)
            logits.append(biased)
        return Draft(torch.stack(tokens), torch.stack(confidences), torch.stack(logits))
