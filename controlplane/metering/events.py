"""What a gateway says of a request that it admitted, on its way to the ledger: journal, Valkey stream, PostgreSQL.

Times are microseconds since 1970 in UTC by the gateway's clock: the instant of admission decides the price.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

import msgspec

USAGE_STREAM: Final = "galley:usage"
"""Stream of `UsageEvent`, field `e`. Entries go when the ledger has them."""
STREAM_BOUND: Final = 500_000
"""Entries beyond which the oldest are trimmed: their gateway still has them and sends them again."""
ACKS_TTL_S: Final = 3600

GATEWAY_LOST: Final = "gateway_lost"
"""Outcome of a request whose gateway died; what it had sent by then is billed."""


def acks_key(journal: str) -> str:
    """List of sequence numbers of a journal that the ledger has."""
    return f"galley:usage:acks:{journal}"


class Subject(msgspec.Struct, frozen=True, array_like=True):
    """Something limited that a request counts against: `t:<tenant>` or `k:<root key>`."""

    name: str
    tokens_per_minute: int | None = None
    requests_per_minute: int | None = None
    budgeted: bool = False


class Intent(msgspec.Struct, frozen=True, kw_only=True, tag="intent", omit_defaults=True):
    """A request was admitted. Written, and synced, before any worker hears of it."""

    seq: int
    slot: int
    """Where its counters are in the progress file."""
    request_id: str
    tenant: str
    caller: str
    key_id: int = 0
    """0: a signed-in user."""
    root_key: int = 0
    model: str
    deployment: str
    gateway: str
    admitted_us: int
    reserved_tokens: int = 0
    subjects: list[Subject] = []
    local: bool = False
    """Admitted from the local allowance: Valkey has no reservation of it."""


class Counts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Disjoint classes: pool hits + store hits + misses are the prompt."""

    pool_hit: int = 0
    store_hit: int = 0
    miss: int = 0
    output: int = 0

    @property
    def total(self) -> int:
        return self.pool_hit + self.store_hit + self.miss + self.output


class Ended(Counts, frozen=True, kw_only=True, tag="ended", omit_defaults=True):
    """A request ended."""

    seq: int
    outcome: str
    ended_us: int


class UsageEvent(msgspec.Struct, frozen=True, kw_only=True):
    """An intent and its end: what becomes one row of the ledger."""

    journal: str
    intent: Intent
    final: Ended

    @property
    def request_id(self) -> str:
        return self.intent.request_id

    @property
    def admitted_at(self) -> datetime:
        return moment(self.intent.admitted_us)

    @property
    def counts(self) -> Counts:
        final = self.final
        return Counts(pool_hit=final.pool_hit, store_hit=final.store_hit, miss=final.miss, output=final.output)


def moment(microseconds: int) -> datetime:
    return datetime.fromtimestamp(microseconds // 10**6, UTC).replace(microsecond=microseconds % 10**6)


_decoder: msgspec.msgpack.Decoder[UsageEvent] = msgspec.msgpack.Decoder(UsageEvent)


def encode(event: UsageEvent) -> bytes:
    return msgspec.msgpack.encode(event)


def decode(data: bytes) -> UsageEvent:
    """Raises msgspec.DecodeError (ValidationError included)."""
    return _decoder.decode(data)
