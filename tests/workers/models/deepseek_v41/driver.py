"""A stand-in for the engine: several requests in one pool and one table of seats, steps of any make-up."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from workers.engine.layout import CacheLayout
from workers.models.base import Batch, Segment
from workers.models.deepseek_v41.serving import ServedDeepseekV41
from workers.models.deepseek_v41.trim import Trim


@dataclass
class Request:
    """`ids` is the whole text, prompt and then what is to be fed as output; `done` tokens have been run."""

    ids: list[int]
    prompt: int
    seat: int
    slots: list[int]
    done: int = 0
    paged_from: int = 0
    rings_from: int = 0
    logits: list[torch.Tensor] = field(default_factory=list)
    """[vocabulary] of every kept row, in order."""

    def all_logits(self) -> torch.Tensor:
        return torch.stack(self.logits)


class Driver:
    """Blocks are handed out in a shuffled order, so that nothing works by lying side by side."""

    def __init__(self, model: ServedDeepseekV41, seats: int = 8, blocks: int = 160) -> None:
        self.model, self.layout = model, CacheLayout(model.cache_spec())
        self.blocks = torch.zeros(blocks, self.layout.block_bytes, dtype=torch.uint8)
        self.seats = torch.zeros(seats, self.layout.seat_bytes, dtype=torch.uint8)
        self.views = self.layout.views(self.blocks, self.seats)
        order = torch.randperm(blocks, generator=torch.Generator().manual_seed(4)).tolist()
        self.free = iter(order)
        self.seat = itertools.count()
        self.layer_rows: list[int] = [0] * model.config.num_hidden_layers

    def request(self, ids: torch.Tensor, prompt: int, hit: Request | None = None, hit_tokens: int = 0) -> Request:
        """A request whose first `hit_tokens` are those of `hit`: it shares the blocks and runs again what it must."""
        size = self.layout.block_tokens
        shared = hit_tokens // size
        own = itertools.islice(self.free, self.layout.blocks_for(len(ids)) - shared)
        slots = [*(hit.slots[:shared] if hit else []), *own]
        request = Request(ids.tolist(), prompt, next(self.seat), slots, paged_from=hit_tokens)
        self.seats[request.seat].zero_()
        if hit_tokens:
            request.done = request.rings_from = self.model.resume_from(hit_tokens, prompt)
        return request

    def step(self, parts: Sequence[tuple[Request, int]]) -> None:
        """Run the next so many tokens of each request, all in one batch."""
        window, look_back = self.model.config.sliding_window, self.model.look_back
        tokens: list[int] = []
        positions: list[int] = []
        segments: list[Segment] = []
        wanted: list[tuple[int, Request]] = []
        for request, count in parts:
            first, end = request.done, request.done + count
            segments.append(
                Segment(
                    start=len(tokens),
                    count=count,
                    context=first,
                    slots=request.slots,
                    seat=request.seat,
                    paged_from=request.paged_from,
                    rings_from=request.rings_from,
                    prompt=request.prompt,
                    before=tuple(request.ids[max(0, first - look_back) : first]),
                )
            )
            kept = request.prompt - window if self.model.trim is Trim.COMPACT else 0
            wanted += [(len(tokens) + p - first, request) for p in range(max(first, kept), end)]
            tokens += request.ids[first:end]
            positions += range(first, end)
            request.done = end
        batch = Batch(
            tokens=torch.tensor(tokens),
            positions=torch.tensor(positions),
            segments=segments,
            logit_rows=torch.tensor([row for row, _ in wanted], dtype=torch.int64),
        )
        output = self.model.forward(batch, self.views)
        for (_, request), row in zip(wanted, output.logits, strict=True):
            request.logits.append(row)
        self.layer_rows = [a + b for a, b in zip(self.layer_rows, output.layer_rows, strict=True)]

    def finish(self, request: Request, chunks: Sequence[int] = ()) -> torch.Tensor:
        """Run a request to its end alone, in these chunks and the rest; its logits."""
        for count in [*chunks, len(request.ids)]:
            if (left := min(count, len(request.ids) - request.done)) > 0:
                self.step([(request, left)])
        return request.all_logits()


def alone(model: ServedDeepseekV41, ids: torch.Tensor, prompt: int, chunks: Sequence[int] = ()) -> torch.Tensor:
    """The logits of a text in a pool of its own; the prompt in these chunks, then token by token."""
    driver = Driver(model)
    request = driver.request(ids, prompt)
    for count in [*chunks, prompt]:
        if (left := min(count, prompt - request.done)) > 0:
            driver.step([(request, left)])
    while request.done < len(ids):
        driver.step([(request, 1)])
    return request.all_logits()
