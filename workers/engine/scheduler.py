"""Which requests start, and which tokens run in the next step. Knows blocks and counts, neither models nor tensors.

- Decode first: every decoding request gets its one token; what is left of the step's token budget goes to prompts.
- Prompts run in chunks. The oldest prompt gets half of what is left, or more where nobody else wants it; the rest
  goes to those with the least left to do, so that a short question never waits for a long document.
- A request starts only with room for its prompt and, unless another worker decodes, the beginning of its output. One
  that has to wait for room lets smaller ones pass, `PATIENCE` times at most.
- A request is asked for credit when it could start. One that is refused is deferred, and has no part in any of this
  until its time comes: what one decode worker has no room for must not keep another one waiting.
- Nothing starts while a request is suspended (`workers.engine.suspension`): it comes first.
- Whatever runs has a seat (`workers.engine.seats`): there are as many as requests may run at once.
- A hit may have to run again from somewhere before its end (`resume_from`): a prompt's length left counts from there.
- At most `MAX_PREFILLS` prompts are in progress, beside short ones: blocks of half-computed prompts help nobody.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice

from workers.engine.blocks import BlockPool
from workers.engine.seats import SeatPool
from workers.engine.sequence import Phase, Sequence
from workers.engine.store_link import StoreLink

MAX_PREFILLS = 4
PATIENCE = 64


@dataclass(frozen=True, slots=True)
class Chunk:
    """`count` tokens of a request run next, from `sequence.computed` on."""

    sequence: Sequence
    count: int


@dataclass(slots=True)
class Admission:
    """`started` now hold blocks and a seat and are prefilling; `asking` want credit."""

    started: list[Sequence] = field(default_factory=list)
    asking: list[Sequence] = field(default_factory=list)


class Scheduler:
    """`waiting` is in order of priority, then arrival; `prefilling` and `decoding` in order of their start."""

    def __init__(
        self,
        pool: BlockPool,
        *,
        block_tokens: int,
        token_budget: int,
        max_running: int,
        output_reserve: int,
        resume_from: Callable[[int, int], int] = lambda hit, prompt: hit,
        store: StoreLink | None = None,
    ) -> None:
        self.pool = pool
        self.block_tokens = block_tokens
        self.token_budget = token_budget
        self.max_running = min(max_running, token_budget)
        self.output_reserve = output_reserve
        self.seats = SeatPool(self.max_running)
        self._resume_from = resume_from
        self._store = store
        self.waiting: list[Sequence] = []
        self.prefilling: list[Sequence] = []
        self.decoding: list[Sequence] = []
        self.reserved: list[Sequence] = []
        self.suspended: list[Sequence] = []

    @property
    def running(self) -> int:
        """Requests that have begun; a suspended one keeps its place."""
        return len(self.prefilling) + len(self.decoding) + len(self.reserved) + len(self.suspended)

    def enqueue(self, sequence: Sequence) -> None:
        bisect.insort(self.waiting, sequence, key=lambda other: other.queue_key)

    def defer(self, sequence: Sequence, until: float) -> None:
        """No credit: it waits again, and has no turn before `until`."""
        if sequence.phase in (Phase.WAITING, Phase.ASKED):
            sequence.phase = Phase.WAITING
            sequence.not_before = until

    def next_turn(self, now: float) -> float:
        """When the first deferred request may be asked again."""
        return min((s.not_before for s in self.waiting if s.not_before > now), default=float("inf"))

    def remove(self, sequence: Sequence) -> None:
        """Take a request out of whichever list it is in; a held one is in none."""
        for group in (self.waiting, self.prefilling, self.decoding, self.reserved, self.suspended):
            if sequence in group:
                group.remove(sequence)

    def decode(self, sequence: Sequence) -> None:
        """The prompt is complete: one token a step from now on."""
        self.remove(sequence)
        sequence.phase = Phase.DECODE
        self.decoding.append(sequence)

    def suspend(self, sequence: Sequence) -> None:
        self.remove(sequence)
        sequence.phase = Phase.SUSPENDED
        self.suspended.append(sequence)

    def reserve(self, sequence: Sequence) -> bool:
        """Room for a request whose prompt another worker computes, beginning with the blocks that are here."""
        if not self.may_reserve(sequence):
            return False
        sequence.extend_chain(sequence.prompt_tokens)
        if not self.take_room(sequence, self.hits(sequence, whole_prompt=True)):
            return False
        self.reserved.append(sequence)
        return True

    def may_reserve(self, sequence: Sequence) -> bool:
        """Whether there could be room for it, seen before its prompt is hashed: at best every full block is here."""
        prompt, output = self.blocks_needed(sequence)
        least = prompt - sequence.prompt_tokens // self.block_tokens + output
        room = self.running < self.max_running and self.seats.free > 0
        return not self.suspended and room and least <= self.pool.available

    def hits(self, sequence: Sequence, *, whole_prompt: bool = False) -> list[int]:
        """Blocks of the longest usable prefix. The last token always runs here, unless only its bytes are wanted.

        Asked at each step of everybody who waits: what is known is kept, and looked up further from its end.
        """
        usable = sequence.prompt_tokens if whole_prompt else sequence.prompt_tokens - 1
        if sequence.hits_as_of != self.pool.forgotten:
            sequence.hits, sequence.hits_as_of = [], self.pool.forgotten
        known = len(sequence.hits)
        sequence.hits += self.pool.lookup(islice(sequence.chain, known, usable // self.block_tokens))
        return sequence.hits

    def blocks_needed(self, sequence: Sequence) -> tuple[int, int]:
        """(blocks of the prompt, further blocks set aside for output). The last token's row is never written."""
        prompt = -(-sequence.prompt_tokens // self.block_tokens)
        if sequence.hold:
            return prompt, 0
        output = min(sequence.output_limit, self.output_reserve)
        total = -(-(sequence.prompt_tokens + output - 1) // self.block_tokens)
        return prompt, max(total - prompt, 0)

    def take_room(self, sequence: Sequence, hits: list[int]) -> bool:
        """A seat, blocks for the prompt, beginning with `hits`, and a promise for the output: all or nothing."""
        prompt, output = self.blocks_needed(sequence)
        if not self.seats.free or not self.pool.fits(hits, prompt - len(hits) + output):
            return False
        sequence.seat = self.seats.take()
        self.pool.acquire(hits)
        sequence.slots = hits + self.pool.allocate(prompt - len(hits))
        self.pool.reserve(output)
        sequence.reserved = output
        sequence.published = len(hits)
        sequence.hits = []
        return True

    def leave_seat(self, sequence: Sequence) -> None:
        """Its rings and states are of no further use here, or put aside."""
        if sequence.seat is not None:
            self.seats.give_back(sequence.seat)
            sequence.seat = None

    def admit(self, now: float) -> Admission:
        """Start what can start, in order. Held requests are asked for credit first, when they could start now."""
        result = Admission()
        if self.suspended or self.running >= self.max_running:
            return result
        promised = self._promised_blocks()
        asked = sum(1 for sequence in self.waiting if sequence.phase is not Phase.WAITING)
        without_room: list[Sequence] = []
        for sequence in list(self.waiting):
            waits = sequence.phase is Phase.WAITING
            if sequence.phase is Phase.ASKED or (waits and sequence.not_before > now):
                continue
            if self.running + (asked if waits else 0) >= self.max_running:
                continue
            hits = self.hits(sequence)
            more = self._from_store(sequence, hits)
            if more is None:
                continue
            hit = (len(hits) + more) * self.block_tokens
            left = sequence.prompt_tokens - self._resume(sequence, hit)
            if not self._has_turn(left, asked if waits else 0):
                continue
            if sequence.hold and waits:
                prompt, _ = self.blocks_needed(sequence)
                fits = self.pool.fits(hits, prompt - len(hits) + promised)
                if fits:
                    sequence.phase = Phase.ASKED
                    result.asking.append(sequence)
                    promised += prompt
                    asked += 1
            else:
                fits = self.take_room(sequence, hits)
                if fits:
                    sequence.store_hit = more * self.block_tokens
                    self._start(sequence, hit, result)
            if fits:
                for passed in without_room:
                    passed.passed_over += 1
            elif sequence.passed_over >= PATIENCE:
                break
            else:
                without_room.append(sequence)
        return result

    def _from_store(self, sequence: Sequence, hits: list[int]) -> int | None:
        """Blocks that the KV store adds to `hits`, or None while they are being read. Nothing is read for a request
        that would not have room."""
        if self._store is None:
            return 0
        prompt, _ = self.blocks_needed(sequence)
        if self.pool.fits(hits, prompt - len(hits)) and not self._store.ready(sequence, len(hits)):
            return None
        return self._store.found(sequence, len(hits))

    def _resume(self, sequence: Sequence, hit: int) -> int:
        """Where the prompt begins to run after a hit of `hit` tokens."""
        if self._store is not None:
            return self._store.resume(sequence, hit)
        return self._resume_from(hit, sequence.prompt_tokens)

    def _start(self, sequence: Sequence, hit: int, result: Admission) -> None:
        self.waiting.remove(sequence)
        sequence.phase = Phase.PREFILL
        sequence.paged_from = hit
        sequence.computed = sequence.rings_from = self._resume(sequence, hit)
        self.prefilling.append(sequence)
        result.started.append(sequence)

    def _promised_blocks(self) -> int:
        """Blocks that requests with credit, or about to get it, will take."""
        return sum(self.blocks_needed(s)[0] for s in self.waiting if s.phase in (Phase.ASKED, Phase.GRANTED))

    def _has_turn(self, left: int, asked: int) -> bool:
        """Whether one more prompt with `left` tokens to compute may begin beside those in progress."""
        return len(self.prefilling) + asked < MAX_PREFILLS or left <= self.token_budget // MAX_PREFILLS

    def pick(self) -> list[Chunk]:
        """The next step's tokens: decoding requests first, in order, then prompts."""
        chunks = [Chunk(sequence, 1) for sequence in self.decoding[: self.token_budget]]
        budget = self.token_budget - len(chunks)
        if not self.prefilling or not budget:
            return chunks
        oldest, *others = sorted(self.prefilling, key=lambda s: s.queue_key)
        shares = {id(oldest): min(oldest.next_stop, -(-budget // 2))}
        budget -= shares[id(oldest)]
        for sequence in sorted(others, key=lambda s: (s.request.priority, s.left)):
            shares[id(sequence)] = min(sequence.next_stop, budget)
            budget -= shares[id(sequence)]
        shares[id(oldest)] += min(oldest.next_stop - shares[id(oldest)], budget)
        chunks.extend(Chunk(sequence, shares[id(sequence)]) for sequence in self.prefilling if shares[id(sequence)])
        return chunks
