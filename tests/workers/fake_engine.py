"""A small deterministic engine without torch, for tests of what surrounds an engine.

Its "KV rows" are the token ids themselves, written into a real memfd arena; the next token is a hash of the bytes found
in the arena, so a block that was copied wrongly, late or from the wrong slot changes the text.
"""

from __future__ import annotations

import fcntl
import hashlib
import mmap
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from workers.engine.api import (
    BlocksEvent,
    EngineBusy,
    EngineRequest,
    EngineStats,
    FailedEvent,
    Prefilled,
    RequestRefused,
    Reservation,
    ScheduledEvent,
    StepOutput,
)
from workers.protocol import ErrorCode, Finish, RequestId, TokenDelta, pack_tokens, unpack_tokens

BLOCK_TOKENS = 4
BLOCK_BYTES = 256
VOCABULARY = 1000


class FakeArena:
    def __init__(self, blocks_total: int) -> None:
        self.blocks_total = blocks_total
        self.block_bytes = BLOCK_BYTES
        self.header_bytes = -(-8 * blocks_total // 64) * 64
        size = self.header_bytes + blocks_total * BLOCK_BYTES
        self.fd = os.memfd_create("fake-arena", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(self.fd, size)
        fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
        self._view = memoryview(mmap.mmap(self.fd, size))

    def block(self, slot: int) -> memoryview:
        start = self.header_bytes + slot * BLOCK_BYTES
        return self._view[start : start + BLOCK_BYTES]

    def generation(self, slot: int) -> int:
        return int.from_bytes(self._view[8 * slot : 8 * slot + 8], "little")

    def bump(self, slot: int) -> None:
        self._view[8 * slot : 8 * slot + 8] = (self.generation(slot) + 1).to_bytes(8, "little")


@dataclass
class _Sequence:
    request: EngineRequest
    hold: bool
    slots: list[int] = field(default_factory=list)
    granted: bool = False
    asked: bool = False
    not_before: float = 0.0
    computed: int = 0
    tokens_out: list[int] = field(default_factory=list)
    hit: int = 0
    phase: str = "waiting"


class FakeEngine:
    """One chunk of `chunk` prompt tokens and one token of every decoding request per step."""

    def __init__(
        self, *, blocks: int = 64, chunk: int = 8, step_s: float = 0.0, max_queue: int = 64, max_context: int = 256
    ) -> None:
        self.arena = FakeArena(blocks)
        self._free = list(range(blocks))
        self._cached: dict[tuple[bytes, tuple[int, ...]], int] = {}
        """Block by (salt, all tokens up to its end): unreferenced, reusable."""
        self._chunk, self._step_s, self._max_queue, self._max_context = chunk, step_s, max_queue, max_context
        self._live: dict[RequestId, _Sequence] = {}
        self._steps = self._computed = 0
        self._failed: list[FailedEvent] = []

    # --- commands --------------------------------------------------------------------------------------------

    def submit(self, request: EngineRequest, *, hold: bool = False) -> None:
        self._check(request)
        if sum(sequence.phase == "waiting" for sequence in self._live.values()) >= self._max_queue:
            raise EngineBusy("the queue is full")
        self._live[request.request_id] = _Sequence(request, hold)

    def grant(self, request_id: RequestId) -> None:
        if request_id in self._live:
            self._live[request_id].granted = True

    def defer(self, request_id: RequestId, until: float) -> None:
        sequence = self._live.get(request_id)
        if sequence is not None and not sequence.granted:
            sequence.asked, sequence.not_before = False, until

    def release(self, request_id: RequestId) -> None:
        self._drop(request_id, publish=True)

    def cancel(self, request_id: RequestId) -> None:
        self._drop(request_id, publish=False)

    def reserve(self, request: EngineRequest) -> Reservation | None:
        self._check(request)
        sequence = _Sequence(request, hold=False, phase="reserved")
        hit = self._hit_slots(request)
        if not self._allocate(sequence, hit):
            return None
        self._live[request.request_id] = sequence
        return Reservation(have_blocks=len(hit), slots=sequence.slots[: -(-len(request.tokens) // BLOCK_TOKENS)])

    def activate(self, request_id: RequestId, first_token: int, sections: list[tuple[str, int, bytes]]) -> None:
        sequence = self._live.get(request_id)
        if sequence is not None:
            assert sections == _sections(sequence.request.tokens)
            sequence.computed = len(sequence.request.tokens)
            self._write(sequence, sequence.computed, [first_token])
            sequence.tokens_out.append(first_token)
            sequence.phase = "decoding"

    # --- steps -----------------------------------------------------------------------------------------------

    def has_work(self) -> bool:
        return bool(self._live)

    def step(self) -> StepOutput:
        output = StepOutput(failed=self._failed)
        self._failed = []
        worked = False
        now = time.monotonic()
        for request_id, sequence in list(self._live.items()):
            if sequence.phase == "waiting" and sequence.request.deadline <= now:
                self._drop(request_id, publish=False)
                message = "too late"
                output.failed.append(FailedEvent(request_id=request_id, code=ErrorCode.DEADLINE, message=message))
            elif sequence.phase == "waiting":
                self._start(sequence, output)
            if sequence.phase == "prefilling":
                worked = True
                self._prefill(sequence, output)
            elif sequence.phase == "decoding":
                worked = True
                self._emit(sequence, output)
        if worked:
            self._steps += 1
            time.sleep(self._step_s)
        return output

    def stats(self) -> EngineStats:
        phases = [sequence.phase for sequence in self._live.values()]
        used = sum(len(sequence.slots) for sequence in self._live.values())
        return EngineStats(
            running=phases.count("prefilling") + phases.count("decoding"),
            waiting=phases.count("waiting"),
            waiting_tokens=0,
            held=phases.count("held"),
            blocks_total=self.arena.blocks_total,
            blocks_used=used,
            blocks_cached=len(self._cached),
            steps=self._steps,
            computed_tokens=self._computed,
            preemptions=0,
        )

    def check_conservation(self) -> None:
        owned = [slot for sequence in self._live.values() for slot in sequence.slots]
        everything = sorted(owned + self._free + list(self._cached.values()))
        assert everything == list(range(self.arena.blocks_total)), "a block was lost or doubled"

    # --- inside ----------------------------------------------------------------------------------------------

    def _check(self, request: EngineRequest) -> None:
        if not request.tokens or max(request.tokens) >= VOCABULARY:
            raise RequestRefused(ErrorCode.INVALID, "no such tokens")
        if len(request.tokens) + request.sampling.max_tokens > self._max_context:
            raise RequestRefused(ErrorCode.CONTEXT_LENGTH, "too long")
        if request.request_id in self._live:
            raise RequestRefused(ErrorCode.INVALID, "known already")

    def _hit_slots(self, request: EngineRequest) -> list[tuple[bytes, tuple[int, ...]]]:
        keys = []
        for end in range(BLOCK_TOKENS, len(request.tokens), BLOCK_TOKENS):
            key = (request.salt, tuple(request.tokens[:end]))
            if key not in self._cached:
                break
            keys.append(key)
        return keys

    def _allocate(self, sequence: _Sequence, hit: Sequence[tuple[bytes, tuple[int, ...]]]) -> bool:
        """Takes its hits out of the cache (one user at a time is enough here) and evicts others for the rest."""
        request = sequence.request
        total = -(-(len(request.tokens) + request.sampling.max_tokens) // BLOCK_TOKENS)
        fresh = total - len(hit)
        spare = [key for key in self._cached if key not in hit]
        if fresh > len(self._free) + len(spare):
            return False
        sequence.slots = [self._cached.pop(key) for key in hit]
        sequence.hit = len(hit) * BLOCK_TOKENS
        for _ in range(fresh):
            slot = self._free.pop() if self._free else self._cached.pop(spare.pop())
            self.arena.bump(slot)
            sequence.slots.append(slot)
        return True

    def _start(self, sequence: _Sequence, output: StepOutput) -> None:
        if sequence.hold and not sequence.granted:
            if not sequence.asked and time.monotonic() >= sequence.not_before:
                sequence.asked = True
                output.wants_credit.append(sequence.request.request_id)
            return
        if not self._allocate(sequence, self._hit_slots(sequence.request)):
            return
        sequence.phase = "prefilling"
        sequence.computed = sequence.hit
        total = len(sequence.request.tokens)
        output.scheduled.append(
            ScheduledEvent(
                request_id=sequence.request.request_id,
                pool_hit_tokens=sequence.hit,
                store_hit_tokens=0,
                miss_tokens=total - sequence.hit,
                recomputed_tokens=0,
                queue_s=time.monotonic() - sequence.request.arrived,
            )
        )
        if sequence.hold and sequence.hit:
            output.blocks.append(self._event(sequence, 0, sequence.hit // BLOCK_TOKENS))

    def _prefill(self, sequence: _Sequence, output: StepOutput) -> None:
        request, before = sequence.request, sequence.computed
        upto = min(before + self._chunk, len(request.tokens))
        self._write(sequence, before, request.tokens[before:upto])
        sequence.computed = upto
        self._computed += upto - before
        last = upto == len(request.tokens)
        first_block = before // BLOCK_TOKENS
        end_block = -(-upto // BLOCK_TOKENS) if last else upto // BLOCK_TOKENS
        if sequence.hold and end_block > first_block:
            output.blocks.append(self._event(sequence, first_block, end_block))
        if not last:
            return
        finish = self._emit(sequence, output)
        if sequence.hold:
            sequence.phase = "held"
            output.prefilled.append(
                Prefilled(
                    request_id=request.request_id,
                    first_token=sequence.tokens_out[0],
                    finish=finish,
                    sections=_sections(request.tokens),
                    prefill_s=0.001,
                )
            )
        elif finish is None:
            sequence.phase = "decoding"

    def _emit(self, sequence: _Sequence, output: StepOutput) -> Finish | None:
        """The next token, from what the arena holds."""
        request = sequence.request
        token = next_token(self._read(sequence))
        index = len(sequence.tokens_out)
        self._write(sequence, len(request.tokens) + index, [token])
        sequence.tokens_out.append(token)
        finish = None
        if token in request.sampling.stop_token_ids:
            finish = Finish.STOP
        elif index + 1 >= request.sampling.max_tokens:
            finish = Finish.LENGTH
        output.deltas.append(TokenDelta(request_id=request.request_id, index=index, tokens=[token], finish=finish))
        if finish is not None and not sequence.hold:
            self._drop(request.request_id, publish=True)
        return finish

    def _event(self, sequence: _Sequence, first: int, end: int) -> BlocksEvent:
        slots = sequence.slots[first:end]
        return BlocksEvent(
            request_id=sequence.request.request_id,
            first=first,
            slots=slots,
            generations=[self.arena.generation(slot) for slot in slots],
        )

    def _write(self, sequence: _Sequence, position: int, tokens: Sequence[int]) -> None:
        for offset, token in enumerate(tokens):
            block, row = divmod(position + offset, BLOCK_TOKENS)
            self.arena.block(sequence.slots[block])[4 * row : 4 * row + 4] = pack_tokens([token])

    def _read(self, sequence: _Sequence) -> list[int]:
        count = len(sequence.request.tokens) + len(sequence.tokens_out)
        raw = b"".join(bytes(self.arena.block(slot)[: 4 * BLOCK_TOKENS]) for slot in sequence.slots)
        return unpack_tokens(raw[: 4 * count])

    def _drop(self, request_id: RequestId, *, publish: bool) -> None:
        sequence = self._live.pop(request_id, None)
        if sequence is None:
            return
        request = sequence.request
        for index, slot in enumerate(sequence.slots):
            end = (index + 1) * BLOCK_TOKENS
            key = (request.salt, tuple(request.tokens[:end]))
            if publish and end <= len(request.tokens) and key not in self._cached:
                self._cached[key] = slot
            else:
                self._free.append(slot)


def _sections(prompt: Sequence[int]) -> list[tuple[str, int, bytes]]:
    """What decode insists on: a ring that takes two frames, and a small state."""
    return [("ring", 1, pack_tokens(list(prompt[-3:])) * 100_000), ("state", 2, pack_tokens([sum(prompt) % 1000]))]


def next_token(tokens: Sequence[int]) -> int:
    """What the fake model says after `tokens`."""
    return int.from_bytes(hashlib.sha256(pack_tokens(list(tokens))).digest()[:4], "little") % VOCABULARY


def expected(prompt: Sequence[int], count: int) -> list[int]:
    """The fake model's greedy continuation."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(next_token(tokens))
    return tokens[len(prompt) :]
