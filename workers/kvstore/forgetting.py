"""Taking a chain back out of the store: bytes that turned out wrong must not be served to anybody again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from workers.identity import BlockHash
from workers.kvstore.extent import short_names, sidecar_hash
from workers.kvstore.index import Index
from workers.kvstore.writing import Writer

PATIENCE_S: Final = 1.0
"""For a write of these blocks that has begun."""


def forget_chain(
    index: Index, writer: Writer, chain: Sequence[BlockHash], kinds: Sequence[str], *, timeout_s: float = PATIENCE_S
) -> int:
    """Drop what is queued of these blocks and make what is stored of them, sidecars of `kinds` included, unfindable.
    How many extents went. Raises IndexUnavailable; TimeoutError where a write of them does not end."""
    writer.void(frozenset(chain), timeout_s)
    sidecars = [sidecar_hash(block, kind) for kind in kinds for block in chain]
    extents = {run.extent for run in index.lookup(short_names(chain)).runs}
    if sidecars:
        extents |= {run.extent for run in index.locate(short_names(sidecars)).runs if run.count}
    return len(index.forget(sorted(extents), reason="faulty"))
