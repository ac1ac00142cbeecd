"""The requests of a trace as sessions of prompts, for modes that compute; and what an ideal cache would find."""

from __future__ import annotations

import hashlib
import itertools
from collections import deque
from dataclasses import dataclass, field

from benchmarks.traces import Trace, TraceRequest
from workers.identity import BlockHash

ENGINE_OVERLAP = 8


class Prompts:
    """A block id of the trace as tokens: the same id of the same session always gives the same ones."""

    def __init__(self, trace: Trace, vocab_size: int) -> None:
        self._block_tokens = trace.block_tokens
        self._first, self._span = vocab_size // 8, vocab_size // 2  # ordinary ids: specials lie at the ends
        self._known: dict[tuple[int, int], list[int]] = {}

    def of(self, request: TraceRequest) -> list[int]:
        blocks = (self._block(request.session, block) for block in request.blocks)
        return list(itertools.islice(itertools.chain.from_iterable(blocks), request.input_tokens))

    def _block(self, session: int, block: int) -> list[int]:
        found = self._known.get((session, block))
        if found is None:
            drawn = hashlib.shake_128(b"%d %d" % (session, block)).digest(2 * self._block_tokens)
            numbers = (int.from_bytes(drawn[at : at + 2]) for at in range(0, len(drawn), 2))
            found = self._known[session, block] = [self._first + number % self._span for number in numbers]
        return found


@dataclass(slots=True)
class Ideal:
    """A cache that never forgets, at the model's block size. The last token of a prompt always runs."""

    block_tokens: int
    hit_tokens: int = 0
    tokens: int = 0
    blocks: set[BlockHash] = field(default_factory=set)

    def add(self, tokens: int, hashes: list[BlockHash]) -> None:
        usable = hashes[: (tokens - 1) // self.block_tokens]
        hit = next((n for n, block in enumerate(usable) if block not in self.blocks), len(usable))
        self.hit_tokens += hit * self.block_tokens
        self.tokens += tokens
        self.blocks.update(hashes)


class Sessions:
    """Which request comes next: `most` sessions at once, in the order of the trace, each one's requests in turn."""

    def __init__(self, trace: Trace, most: int) -> None:
        by_session: dict[int, deque[TraceRequest]] = {}
        for request in trace.requests:
            by_session.setdefault(request.session, deque()).append(request)
        self._waiting = deque(sorted(by_session.items()))
        self._most = most
        self._idle: deque[tuple[int, deque[TraceRequest]]] = deque()
        self._busy: dict[int, deque[TraceRequest]] = {}
        self.most_at_once = 0

    @property
    def left(self) -> bool:
        return bool(self._waiting or self._idle or self._busy)

    def next(self) -> TraceRequest | None:
        while self._waiting and len(self._idle) + len(self._busy) < self._most:
            self._idle.append(self._waiting.popleft())
        if not self._idle:
            return None
        session, requests = self._idle.popleft()
        self._busy[session] = requests
        self.most_at_once = max(self.most_at_once, len(self._busy))
        return requests.popleft()

    def done(self, session: int) -> None:
        requests = self._busy.pop(session)
        if requests:
            self._idle.append((session, requests))
