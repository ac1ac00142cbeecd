"""What the engine tells of a request, made from its sequence."""

from __future__ import annotations

from workers.engine.api import BlocksEvent, FailedEvent, Prefilled, ScheduledEvent
from workers.engine.arena import Arena
from workers.engine.sampler import Sampled
from workers.engine.seats import Sections
from workers.engine.sequence import Sequence
from workers.protocol import ErrorCode, Finish, TokenDelta


def scheduled(sequence: Sequence, now: float) -> ScheduledEvent:
    """Its prefill starts: what it hit in pool and store is counted once, here."""
    hit = sequence.paged_from
    return ScheduledEvent(
        request_id=sequence.request.request_id,
        pool_hit_tokens=hit - sequence.store_hit,
        store_hit_tokens=sequence.store_hit,
        miss_tokens=sequence.prompt_tokens - hit,
        recomputed_tokens=hit - sequence.computed,
        queue_s=max(now - sequence.request.arrived, 0.0),
    )


def token(sequence: Sequence, sampled: Sampled, finish: Finish | None) -> TokenDelta:
    """The token that was just appended."""
    return TokenDelta(
        request_id=sequence.request.request_id,
        index=sequence.outputs - 1,
        tokens=sequence.tokens[-1:],
        finish=finish,
        logprobs=None if sampled.logprobs is None else [sampled.logprobs],
    )


def ended(sequence: Sequence, finish: Finish) -> TokenDelta:
    """It ends without a further token."""
    return TokenDelta(request_id=sequence.request.request_id, index=sequence.outputs, tokens=[], finish=finish)


def prefilled(sequence: Sequence, finish: Finish | None, sections: Sections, now: float) -> Prefilled:
    """Its prompt is complete, and the token that follows it was just appended."""
    return Prefilled(
        request_id=sequence.request.request_id,
        first_token=sequence.tokens[-1],
        finish=finish,
        sections=sections,
        prefill_s=now - sequence.started,
    )


def final_blocks(sequence: Sequence, arena: Arena) -> BlocksEvent | None:
    """Blocks whose bytes became final since the last call: full ones, at the prompt's end the last one too."""
    final = len(sequence.slots) if not sequence.left else sequence.paged // sequence.block_tokens
    if final <= sequence.announced:
        return None
    first, sequence.announced = sequence.announced, final
    slots = sequence.slots[first:final]
    return BlocksEvent(
        request_id=sequence.request.request_id,
        first=first,
        slots=slots,
        generations=[arena.generation(slot) for slot in slots],
    )


def failed(sequence: Sequence, code: ErrorCode, message: str) -> FailedEvent:
    return FailedEvent(request_id=sequence.request.request_id, code=code, message=message)
