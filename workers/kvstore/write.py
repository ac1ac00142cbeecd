"""What a write is made of, from the hand-over to the disk."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from workers.identity import BlockHash
from workers.kvstore.extent import PAGED

Buffer = bytes | bytearray | memoryview


@dataclass(slots=True, kw_only=True, eq=False)
class Write:
    """One run, or one sidecar (`kind` is not `paged`, one block of bytes that belongs to `chain[-1]`)."""

    chain: list[BlockHash]
    start: int
    """The chain's index of `blocks[0]`."""
    blocks: Sequence[Buffer]
    salt_id: str
    fingerprint: str
    retention_class: str
    kind: str = PAGED
    unit_end: bool = True
    """Sidecars only: the block ends a unit (end of input, end of output, a common prefix)."""
    created: float
    """Unix seconds when its bytes began to be computed, or were handed over: a purge after that makes it void."""
    deadline: float
    """Monotonic seconds; later it is dropped."""
    done: Callable[[], None] | None = None
    """Called once the bytes are not needed any more, whatever became of them."""
    not_before: float = 0.0
    """Monotonic seconds: the writer's to set, while it waits for the run's parent."""
    orphan_until: float | None = None

    @property
    def nbytes(self) -> int:
        return sum(len(block) for block in self.blocks)

    @property
    def names(self) -> list[BlockHash]:
        """Of the blocks whose bytes these are."""
        return self.chain[self.start :]
