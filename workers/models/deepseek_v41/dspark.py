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

from kernels import hyper_connections
from kernels.quantization import Places, Weight, read_rows, round_rows, write_rows
from kernels.sparse_attention import Source
from workers.models.deepseek_v41.config import DeepseekV41Config
from workers.models.deepseek_v41.hyper_connections import open_streams
from workers.models.deepseek_v41.layer import Sublayers
from workers.models.deepseek_v41.layer_caches import LayerCaches
from workers.models.deepseek_v41.norm import rms_norm, widen
from workers.models.deepseek_v41.plan import RowSet
from workers.models.deepseek_v41.rope import Rotary
from workers.models.deepseek_v41.tiling import Tiling
from workers.models.deepseek_v41.weights import Matrix, WeightShelf


@dataclass(frozen=True, slots=True)
class Draft:
    """tokens int64 [G], confidence [G], logits [G, vocabulary] (of the draft distribution, Markov head included)."""

    tokens: torch.Tensor
    confidence: torch.Tensor
    logits: torch.Tensor


@dataclass(frozen=True, slots=True)
class Anchor:
    """A token that is sampled and not yet processed, its position and request; no context below `floor` is seen."""

    token: int
    position: int
    seat: int = 0
    floor: int = 0


class DSpark:
    """The draft stages. Embedding and head are the model's."""

    def __init__(self, config: DeepseekV41Config, shelf: WeightShelf, embed: Weight, head: Matrix) -> None:
        self.config, self.embed, self.head = config, embed, head
        experts, top_k = config.dspark_n_routed_experts, config.dspark_num_experts_per_tok
        self.rotary = Rotary.of_window_layers(config)
        self.main_proj = shelf.matrix("mtp.0.main_proj")
        self.main_norm = shelf.vector("mtp.0.main_norm")
        self.stages = [
            Sublayers(config, shelf, f"mtp.{s}", experts=experts, top_k=top_k, image_bias=False)
            for s in range(config.num_nextn_predict_layers)
        ]
        last = f"mtp.{config.num_nextn_predict_layers - 1}"
        self.norm = shelf.vector(f"{last}.norm")
        self.markov_embed = shelf.weight(f"{last}.markov_head.embed")
        self.markov_head = shelf.matrix(f"{last}.markov_head.head")
        self.confidence_proj = shelf.matrix(f"{last}.confidence_head.proj", exact=True)

    def write_context(self, aux: torch.Tensor, rows: RowSet, caches: LayerCaches, tiling: Tiling) -> None:
        """Leave the window rows of a pass's tokens in every stage. aux [T, targets * D]."""
        there, plan = rows.plain.there, rows.window
        if plan.rows is not None:
            aux, there = aux[plan.rows], there[plan.rows]
        for number, row in enumerate(tiling(self._context, aux, there)):
            write_rows(caches.draft_window(number), plan.places, row)

    def _context(self, aux: torch.Tensor, there: torch.Tensor) -> tuple[torch.Tensor, ...]:
        context = rms_norm(self.main_proj.linear(aux), self.main_norm, self.config.rms_norm_eps)
        return tuple(stage.attention.window_row(context, there) for stage in self.stages)

    def draft(self, anchor: Anchor, caches: LayerCaches, temperatures: Sequence[float] | None = None) -> Draft:
        """Propose the `dspark_block_size` tokens after the anchor.

        `temperatures` calibrate the confidences, one per position. The caches are left as they are.
        """
        c = self.config
        size, start = c.dspark_block_size, anchor.position
        ids = torch.full((size,), c.dspark_noise_token_id)
        ids[0] = anchor.token
        turns = self.rotary.turns(torch.arange(start, start + size), self.embed.data.dtype)
        no_image = torch.zeros(size, dtype=torch.bool)
        past = torch.arange(max(anchor.floor, start - c.sliding_window), start)
        residual, pre = open_streams(self.embed.rows(ids, self.embed.data.dtype), c.hc_mult)
        wide, formats = widen(residual).dtype, caches.formats
        for number, stage in enumerate(self.stages):
            ring = caches.draft_window(number)
            x, block = stage.enter(residual, pre, turns.there)
            _, queries = stage.query(x, turns.there)
            context = read_rows(ring, Places(torch.full_like(past, anchor.seat), past % ring.data.shape[1]), wide)
            seen = torch.cat((context, widen(round_rows(block, formats.window)))).expand(size, -1, -1)
            bias = seen.new_zeros(seen.shape[:2])
            attended = stage.attention.attend(queries, [Source(seen)], bias)
            residual, pre, _ = stage.finish(residual, attended, turns.back, no_image)
        return self._read_out(hyper_connections.collapse(residual, pre), anchor.token, temperatures)

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
