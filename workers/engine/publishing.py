"""Blocks that became full are offered to the pool, so that other requests find them."""

from __future__ import annotations

from workers.engine.blocks import BlockPool
from workers.engine.sequence import Sequence


def publish(pool: BlockPool, sequence: Sequence) -> None:
    """Offer the blocks that are full now; what the pool knows already under another slot stays private.

    Blocks of a hit that runs again are full already; those that came from the pool count as published.
    """
    full = sequence.paged // sequence.block_tokens
    if full <= sequence.published:
        return
    sequence.extend_chain(sequence.paged)
    for index in range(sequence.published, full):
        pool.publish(sequence.slots[index], sequence.chain[index], sequence.scope)
    sequence.published = full
