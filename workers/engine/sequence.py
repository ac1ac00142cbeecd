"""One request inside the engine: its tokens, its blocks, and how far it has come."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from workers.engine.api import EngineRequest
from workers.engine.claims import NOBODY, Scope
from workers.identity import BlockHash, block_hash
from workers.protocol import Finish


class Phase(enum.Enum):
    WAITING = "waiting"
    """Queued, holds nothing."""
    ASKED = "asked"
    """Could start; waits for the decode worker's credit, holds nothing."""
    GRANTED = "granted"
    """Credit is there; starts as soon as there is room."""
    PREFILL = "prefill"
    DECODE = "decode"
    HELD = "held"
    """Prompt complete; blocks pinned until the decode worker has them."""
    RESERVED = "reserved"
    """Room set aside on a decode worker; its blocks are being filled by the transfer."""
    SUSPENDED = "suspended"
    """Stepped aside while the pool is full; its bytes are in the spool."""
    ENDED = "ended"


QUEUED = frozenset({Phase.WAITING, Phase.ASKED, Phase.GRANTED})
"""Has computed nothing and holds nothing of anybody's."""
BLOCKLESS = frozenset({Phase.WAITING, Phase.ASKED, Phase.GRANTED, Phase.SUSPENDED})


@dataclass(slots=True, eq=False)
class Sequence:
    """`tokens` is the prompt and every committed output token; the first `computed` of them are in the cache.

    Where a hit's end runs again for the sake of its windows, `computed` begins below the hit (`paged_from`), and the
    blocks between are read and not written. `seat` is its place in rings and state sections while it runs.

    `slots[i]` holds tokens [i * B, (i + 1) * B); `reserved` blocks more are promised for output. `chain` are the
    hashes of full blocks known so far, `published` how many of the slots were offered to the pool under them (or
    came from it).
    """

    request: EngineRequest
    phase: Phase
    hold: bool
    root: BlockHash
    block_tokens: int
    output_limit: int
    tokens: list[int]
    scope: Scope = NOBODY
    """On whose behalf it uses blocks."""
    computed: int = 0
    paged_from: int = 0
    """The hit, in tokens: paged rows below are exact, whoever computed them."""
    rings_from: int = 0
    """Where it began to run, or the first row that was kept for it: rings and states know nothing of what is below."""
    rings_exact_from: int = 0
    """Ring rows of tokens from here on are what a cold run gives, in every layer: only such may be kept."""
    unit_at: int = 0
    """Where a common prefix with another request ends, if a step shall end there so that its windows can be kept."""
    rows_kept: int = 0
    """Leading blocks whose ring rows were looked at for keeping."""
    seat: int | None = None
    slots: list[int] = field(default_factory=list)
    reserved: int = 0
    chain: list[BlockHash] = field(default_factory=list)
    published: int = 0
    withheld: bool = False
    """Its bytes are nobody else's any more: they were purged, or may be wrong. Nothing of it is published or stored."""
    begun: float = 0.0
    """Unix seconds when it began to compute: a purge since then makes void what it hands to the KV store."""
    store_hit: int = 0
    """The part of the hit, in tokens, that came from the KV store; the rest was in the pool."""
    stored: int = 0
    """Leading blocks that the KV store has, or was given."""
    hits: list[int] = field(default_factory=list)
    """While it waits: slots of the leading blocks last found in the pool, true as long as the pool's `forgotten` is
    `hits_as_of`."""
    hits_as_of: int = -1
    not_before: float = float("-inf")
    """Deferred until then, by the engine's clock."""
    announced: int = 0
    passed_over: int = 0
    started: float = 0.0

    @property
    def prompt_tokens(self) -> int:
        return len(self.request.tokens)

    @property
    def outputs(self) -> int:
        """Output tokens committed so far."""
        return len(self.tokens) - self.prompt_tokens

    @property
    def left(self) -> int:
        """Prompt tokens that are to run yet."""
        return self.prompt_tokens - self.computed

    @property
    def next_stop(self) -> int:
        """Prompt tokens that may run in one step."""
        return self.unit_at - self.computed if self.computed < self.unit_at else self.left

    @property
    def paged(self) -> int:
        """Tokens whose paged rows are there."""
        return max(self.computed, self.paged_from)

    @property
    def queue_key(self) -> tuple[int, float]:
        return (self.request.priority, self.request.arrived)

    def extend_chain(self, tokens: int) -> None:
        """Hash the full blocks among the first `tokens` tokens."""
        size = self.block_tokens
        for index in range(len(self.chain), tokens // size):
            parent = self.chain[-1] if self.chain else self.root
            self.chain.append(block_hash(parent, self.tokens[index * size : (index + 1) * size]))

    def finish_after(self, token: int) -> Finish | None:
        """Whether `token`, just committed, ends the request."""
        if token in self.request.sampling.stop_token_ids:
            return Finish.STOP
        return Finish.LENGTH if self.outputs >= self.output_limit else None
