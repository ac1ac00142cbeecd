"""When decoding outgrows the pool: the youngest request steps aside with its bytes and comes back with the same ones.

Room is set aside for a prompt and the first `output_reserve` tokens of an answer, because most answers end long before
their limit. A request that goes on takes further blocks as it needs them; when there are none, the youngest decoding
request is suspended: its blocks and its seat are copied into ordinary memory and given back. While anything is
suspended nothing new starts, and the oldest suspended request resumes as soon as its blocks and one more fit. The copy
comes back to the bit, so a suspension changes nothing but time. Where the spool is full too, the request ends with
`insufficient_system_resource`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from workers.engine.arena import Arena
from workers.engine.blocks import BlockPool
from workers.engine.scheduler import Scheduler
from workers.engine.seats import SeatMemory
from workers.engine.sequence import Phase, Sequence
from workers.protocol import RequestId


@dataclass(frozen=True, slots=True)
class _Saved:
    """A request's bytes: uint8 [blocks, block_bytes] and [seat_bytes]."""

    blocks: torch.Tensor
    seat: torch.Tensor

    @property
    def nbytes(self) -> int:
        return self.blocks.nbytes + self.seat.nbytes


@dataclass(frozen=True, slots=True)
class MadeRoom:
    """What it took: `suspended` come back by themselves, `evicted` had no place in the spool either."""

    suspended: list[Sequence]
    evicted: list[Sequence]


class Suspension:
    """The spool and the rules around it. `count` is how many suspensions there were."""

    def __init__(
        self, scheduler: Scheduler, pool: BlockPool, arena: Arena, seats: SeatMemory, *, limit_bytes: int
    ) -> None:
        self._scheduler = scheduler
        self._pool = pool
        self._arena = arena
        self._seats = seats
        self._limit_bytes = limit_bytes
        self._spool: dict[RequestId, _Saved] = {}
        self.count = 0

    @property
    def spooled_bytes(self) -> int:
        return sum(saved.nbytes for saved in self._spool.values())

    def grow(self, sequence: Sequence, blocks: int) -> MadeRoom:
        """`blocks` more for a request about to compute into them, from its reservation or from what is there. The
        request itself may be among those that stepped aside: then it got none.
        """
        made = MadeRoom([], [])
        while sequence.phase in (Phase.PREFILL, Phase.DECODE) and not self._take(sequence, blocks):
            self._step_aside(self._youngest(), made)
        return made

    def _take(self, sequence: Sequence, blocks: int) -> bool:
        from_reserve = min(blocks, sequence.reserved)
        if blocks - from_reserve > self._pool.available:
            return False
        sequence.slots.extend(self._pool.allocate(from_reserve, reserved=True))
        sequence.reserved -= from_reserve
        sequence.slots.extend(self._pool.allocate(blocks - from_reserve))
        return True

    def _youngest(self) -> Sequence:
        return max(self._scheduler.decoding, key=lambda sequence: sequence.queue_key)

    def _step_aside(self, sequence: Sequence, made: MadeRoom) -> None:
        size = len(sequence.slots) * self._arena.block_bytes + self._seats.rows.shape[1]
        if self.spooled_bytes + size <= self._limit_bytes:
            assert sequence.seat is not None
            self._spool[sequence.request.request_id] = _Saved(
                self._arena.blocks[sequence.slots], self._seats.rows[sequence.seat].clone()
            )
            self._scheduler.suspend(sequence)
            self.count += 1
            made.suspended.append(sequence)
        else:
            self._scheduler.remove(sequence)
            sequence.phase = Phase.ENDED
            made.evicted.append(sequence)
        self.give_back(sequence)

    def give_back(self, sequence: Sequence) -> None:
        """Every block and promise of a request returns to the pool, and its seat."""
        self._pool.release(sequence.slots, sequence.scope)
        self._pool.unreserve(sequence.reserved)
        sequence.slots = []
        sequence.reserved = 0
        self._scheduler.leave_seat(sequence)

    def resume(self) -> None:
        """Bring back those that fit, oldest first."""
        while self._scheduler.suspended:
            sequence = min(self._scheduler.suspended, key=lambda suspended: suspended.queue_key)
            saved = self._spool[sequence.request.request_id]
            blocks = len(saved.blocks)
            more = 1 if len(sequence.tokens) > blocks * sequence.block_tokens else 0
            # One block to spare for each that decodes, or the next step would suspend somebody again.
            if blocks + more + len(self._scheduler.decoding) > self._pool.available:
                return
            sequence.seat = self._scheduler.seats.take()  # it counts as running, so there is one
            self._seats.rows[sequence.seat] = saved.seat
            sequence.slots = self._pool.allocate(blocks)
            self._pool.reserve(more)
            sequence.reserved = more
            self._arena.blocks[sequence.slots] = saved.blocks
            sequence.published = 0  # its blocks are its own again, and are offered anew
            self.forget(sequence)
            self._scheduler.decode(sequence)

    def forget(self, sequence: Sequence) -> None:
        """Drop what the spool holds of a request, if anything."""
        self._spool.pop(sequence.request.request_id, None)
