"""Blocks that became full are offered to the pool, so that other requests find them."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from workers.engine.blocks import BlockPool
from workers.engine.sequence import QUEUED, Sequence


def withhold(sequences: Iterable[Sequence], concerned: Callable[[Sequence], bool]) -> None:
    """What these requests have computed, or will compute from it, goes to nobody else from now on."""
    for sequence in sequences:
        if sequence.phase not in QUEUED and concerned(sequence):
            sequence.withheld = True


def publish(pool: BlockPool, sequence: Sequence) -> None:
    """Offer the blocks that are full now; what the pool knows already under another slot stays private.

    Blocks of a hit that runs again are full already; those that came from the pool count as published.
    """
    full = sequence.paged // sequence.block_tokens
    if sequence.withheld or full <= sequence.published:
        return
    sequence.extend_chain(sequence.paged)
    for index in range(sequence.published, full):
        pool.publish(sequence.slots[index], sequence.chain[index], sequence.scope)
    sequence.published = full
