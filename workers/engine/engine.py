"""The engine: requests in, tokens out, one step at a time (contract in `workers.engine.api`).

Everything a request holds is in its `Sequence`; the registry knows each by id, whatever its phase. A step is: end
what is past its deadline, start what can start, run one forward pass, commit what it gave. Blocks are published
after the pass that filled them, prompt and output alike.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from workers.engine import accounting, events
from workers.engine.api import EngineBusy, EngineRequest, EngineStats, Reservation, StepOutput
from workers.engine.arena import Arena
from workers.engine.blocks import BlockPool
from workers.engine.candidates import Candidates
from workers.engine.forward import ForwardPasses
from workers.engine.layout import CacheLayout
from workers.engine.publishing import publish, withhold
from workers.engine.registry import NEVER, Registry
from workers.engine.requests import Limits, accept
from workers.engine.sampler import Sampled
from workers.engine.scheduler import Chunk, Scheduler
from workers.engine.seats import SeatMemory
from workers.engine.sequence import BLOCKLESS, Phase, Sequence
from workers.engine.store_link import StoreLink
from workers.engine.suspension import Suspension
from workers.identity import CacheIdentity
from workers.kvstore.store import Store
from workers.models.base import CausalModel
from workers.protocol import ErrorCode, Finish, RequestId, TokenDelta
from workers.spec import EngineSettings


class Engine:
    """`workers.engine.api.EngineApi`. Not thread-safe: one thread calls everything."""

    def __init__(
        self,
        model: CausalModel,
        settings: EngineSettings,
        identity: CacheIdentity,
        *,
        store: Store | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.model = model
        self.settings = settings
        self.identity = identity
        self.layout = CacheLayout(model.cache_spec())
        self.block_tokens = self.layout.block_tokens
        self.max_context = min(
            settings.max_context or model.max_context, model.max_context, settings.pool_blocks * self.block_tokens
        )
        self.arena = Arena(settings.pool_blocks, self.layout.block_bytes)
        self._pool = BlockPool(settings.pool_blocks, self.arena.bump, clock)
        self._store: StoreLink | None = None
        if store is not None:
            self._store = StoreLink(
                store,
                self._pool,
                self.arena,
                fingerprint=identity.fingerprint(),
                live=lambda: self._requests,
                resume_from=model.resume_from,
            )
        self._scheduler = Scheduler(
            self._pool,
            block_tokens=self.block_tokens,
            token_budget=settings.max_batch_tokens,
            max_running=settings.max_running,
            output_reserve=settings.output_reserve_tokens,
            resume_from=model.resume_from,
            store=self._store,
        )
        self._seats = SeatMemory(self.layout, self._scheduler.seats.total)
        views = self.layout.views(self.arena.blocks, self._seats.rows)
        if self._store is not None:
            self._store.open_windows(self.layout, views)
        self._forward = ForwardPasses(model, views)
        self._suspension = Suspension(
            self._scheduler, self._pool, self.arena, self._seats, limit_bytes=settings.spool_mib * 2**20
        )
        self._limits = Limits(model.vocab_size, self.max_context, self.block_tokens)
        self._clock = clock
        self._requests = Registry()
        self._candidates = Candidates(settings.max_queue + 2 * settings.max_running)
        self._ended: list[TokenDelta] = []
        """Of requests that ended between two steps."""
        self._changed = False
        self._next_turn = NEVER

    # --- what the worker calls -------------------------------------------------------------------------------

    def submit(self, request: EngineRequest, *, hold: bool = False) -> None:
        """Queue a request. Raises EngineBusy or RequestRefused."""
        if request.request_id in self._requests:
            return
        if len(self._scheduler.waiting) >= self.settings.max_queue:
            raise EngineBusy(f"{self.settings.max_queue} requests are waiting already")
        sequence = accept(request, Phase.WAITING, hold=hold, limits=self._limits, identity=self.identity)
        sequence.extend_chain(sequence.prompt_tokens)
        self._scheduler.enqueue(sequence)
        self._know(sequence)

    def grant(self, request_id: RequestId) -> None:
        """The decode worker has room: the request may start."""
        sequence = self._requests.get(request_id)
        if sequence is not None and sequence.phase in (Phase.WAITING, Phase.ASKED):
            sequence.phase = Phase.GRANTED
            self._changed = True

    def defer(self, request_id: RequestId, until: float) -> None:
        """No credit before `until`: others come first."""
        sequence = self._requests.get(request_id)
        if sequence is not None:
            self._scheduler.defer(sequence, until)
            if self._store is not None and sequence.phase is Phase.WAITING:
                self._store.deferred(sequence)
            self._changed = True  # its turn is somebody else's
            self._next_turn = min(self._next_turn, until)

    def release(self, request_id: RequestId) -> None:
        """The decode worker has copied everything of a held request."""
        sequence = self._requests.get(request_id)
        if sequence is not None and sequence.phase is Phase.HELD:
            self._forget(sequence)

    def reserve(self, request: EngineRequest) -> Reservation | None:
        """Set room aside, or None when there is none now; then its hashes are kept for the next try. Raises
        RequestRefused.
        """
        sequence = self._requests.get(request.request_id)
        if sequence is None:
            sequence = self._candidates.take(request) or accept(
                request, Phase.RESERVED, hold=False, limits=self._limits, identity=self.identity
            )
            if not self._scheduler.reserve(sequence):
                self._candidates.keep(sequence)
                return None
            self._know(sequence)
        return Reservation(have_blocks=sequence.published, slots=list(sequence.slots))

    def activate(self, request_id: RequestId, first_token: int, sections: list[tuple[str, int, bytes]]) -> None:
        """The reserved blocks hold the prompt: decode from `first_token` (output index 0, not emitted again). Raises
        SectionMismatch; the request stays reserved then.
        """
        sequence = self._requests.get(request_id)
        if sequence is None or sequence.phase is not Phase.RESERVED:
            return
        assert sequence.seat is not None
        self._seats.install(sequence.seat, sections, request_id)
        sequence.computed = sequence.prompt_tokens
        sequence.tokens.append(first_token)
        publish(self._pool, sequence)
        if self._store is not None:
            self._store.taken_over(sequence)
        finish = sequence.finish_after(first_token)
        if finish is not None:  # the two halves of the request need not agree on its end
            self._ended.append(events.ended(sequence, finish))
            self._forget(sequence)
            return
        self._scheduler.decode(sequence)
        self._requests.watch(sequence)
        self._changed = True

    def cancel(self, request_id: RequestId) -> None:
        """Give everything back, in whatever phase. For a request whose blocks are being copied into (reserved) or
        out of (held), the caller has stopped the copying first.
        """
        self._candidates.forget(request_id)
        sequence = self._requests.get(request_id)
        if sequence is not None:
            self._forget(sequence)

    def has_work(self) -> bool:
        """Whether `step` would do anything: tokens to compute, a change since the last step, or a deadline passed."""
        computing = self._scheduler.prefilling or self._scheduler.decoding
        if self._store is not None and self._store.pending:
            return True
        return bool(computing) or self._changed or self._clock() >= min(self._requests.next_deadline, self._next_turn)

    def step(self) -> StepOutput:
        """One scheduling round and at most one forward pass."""
        out = StepOutput(deltas=self._ended)
        self._ended = []
        now = self._clock()
        self._changed = False
        if self._store is not None:
            self._store.turn()
        self._expire(now, out)
        self._suspension.resume()
        self._admit(now, out)
        chunks = self._with_room(self._scheduler.pick(), out)
        if chunks:
            self._run(chunks, out)
        return out

    def stats(self) -> EngineStats:
        return accounting.statistics(self._scheduler, self._requests, self._pool, self._forward, self._suspension)

    def check_conservation(self) -> None:
        """Raise AssertionError unless blocks and seats are conserved (`accounting.check`)."""
        pinned = self._store.pinned() if self._store is not None else ()
        accounting.check(self._scheduler, self._requests, self._pool, pinned)

    # --- a step ----------------------------------------------------------------------------------------------

    def _expire(self, now: float, out: StepOutput) -> None:
        for sequence in self._requests.overdue(now):
            waited = now - sequence.request.arrived
            message = f"deadline exceeded after {waited:.1f} s, while {sequence.phase.value}"
            self._fail(sequence, ErrorCode.DEADLINE, message, out)

    def _admit(self, now: float, out: StepOutput) -> None:
        admission = self._scheduler.admit(now)
        if now >= self._next_turn:
            self._next_turn = self._scheduler.next_turn(now)
        out.wants_credit.extend(sequence.request.request_id for sequence in admission.asking)
        for sequence in admission.started:
            sequence.started = now
            assert sequence.seat is not None
            self._seats.clear(sequence.seat)
            if self._store is not None:
                self._store.start(sequence, sequence.published)
                publish(self._pool, sequence)
            out.scheduled.append(events.scheduled(sequence, now))
            self._announce(sequence, out)

    def _with_room(self, chunks: list[Chunk], out: StepOutput) -> list[Chunk]:
        """The chunks whose requests have blocks to write to; for those of others, requests step aside."""
        for chunk in chunks:
            sequence = chunk.sequence
            missing = self.layout.blocks_for(sequence.computed + chunk.count) - len(sequence.slots)
            if missing <= 0 or sequence.phase in BLOCKLESS:
                continue
            for evicted in self._suspension.grow(sequence, missing).evicted:
                out.deltas.append(events.ended(evicted, Finish.INSUFFICIENT_SYSTEM_RESOURCE))
                self._forget(evicted)
        return [chunk for chunk in chunks if chunk.sequence.phase in (Phase.PREFILL, Phase.DECODE)]

    def _run(self, chunks: list[Chunk], out: StepOutput) -> None:
        sampled = self._forward.run(chunks)
        spoilt = {chunk.sequence for chunk, one in sampled if one.token is None}
        for chunk in chunks:
            sequence = chunk.sequence
            sequence.computed += chunk.count
            if sequence not in spoilt:
                publish(self._pool, sequence)
                if self._store is not None:
                    self._store.progress(sequence)
                self._announce(sequence, out)
        for chunk, one in sampled:
            self._commit(chunk.sequence, one, out)

    def _commit(self, sequence: Sequence, result: Sampled, out: StepOutput) -> None:
        if result.fault:
            self._fail(sequence, ErrorCode.INVALID, result.fault, out)
            return
        if result.token is None:
            # Which of its blocks brought it is not known, hits included: the next request computes all of them anew.
            self._pool.unpublish(sequence.slots)
            sequence.published = 0
            withhold(self._requests, lambda other: other is sequence or other.chain[:1] == sequence.chain[:1] != [])
            if self._store is not None:
                self._store.distrust(sequence)
            self._fail(sequence, ErrorCode.INTERNAL, "the model's logits are not finite", out)
            return
        sequence.tokens.append(result.token)
        finish = sequence.finish_after(result.token)
        out.deltas.append(events.token(sequence, result, finish))
        if sequence.hold:
            self._scheduler.remove(sequence)
            sequence.phase = Phase.HELD
            assert sequence.seat is not None
            sections = [] if finish is not None else self._seats.capture(sequence.seat)
            self._scheduler.leave_seat(sequence)
            out.prefilled.append(events.prefilled(sequence, finish, sections, self._clock()))
        elif finish is not None:
            self._forget(sequence)
        elif sequence.phase is Phase.PREFILL:
            self._scheduler.decode(sequence)

    # --- requests --------------------------------------------------------------------------------------------

    def _know(self, sequence: Sequence) -> None:
        self._requests.add(sequence)
        self._changed = True

    def _announce(self, sequence: Sequence, out: StepOutput) -> None:
        """Tell the decode worker of blocks that it may copy."""
        if sequence.hold and (event := events.final_blocks(sequence, self.arena)) is not None:
            out.blocks.append(event)

    def _fail(self, sequence: Sequence, code: ErrorCode, message: str, out: StepOutput) -> None:
        out.failed.append(events.failed(sequence, code, message))
        self._forget(sequence)

    def _forget(self, sequence: Sequence) -> None:
        """The request ends: everything it holds goes back."""
        self._requests.remove(sequence)
        self._scheduler.remove(sequence)
        if self._store is not None:
            self._store.ended(sequence)
        self._suspension.give_back(sequence)
        self._suspension.forget(sequence)
        sequence.phase = Phase.ENDED
        self._changed = True

    def close(self) -> None:
        if self._store is not None:
            self._store.close()
        self.arena.close()
