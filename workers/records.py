"""What a worker says of each request that ended on it (torch-free): msgpack on a Valkey stream, for reconciliation.

Records are evidence, not the bill: they may get lost while Valkey is away.
"""

from __future__ import annotations

from typing import Final

import msgspec

RECORDS_STREAM: Final = "galley:worker-records"
"""Field `r` of an entry is a list of records."""
RECORDS_BOUND: Final = 100_000
"""Entries beyond which the oldest are trimmed."""


class RequestRecord(msgspec.Struct, frozen=True, array_like=True):
    """One attempt at one worker. Prompt classes are those of the worker that ran prefill, elsewhere they are 0."""

    attempt_id: str
    worker: str
    epoch: int
    way: str
    """`local`, `hold` (prefill for another), `pull` or `decode`."""
    outcome: str
    ended_us: int
    """Microseconds since 1970, by the worker's clock."""
    pool_hit_tokens: int
    store_hit_tokens: int
    miss_tokens: int
    output_tokens: int


_decoder: msgspec.msgpack.Decoder[list[RequestRecord]] = msgspec.msgpack.Decoder(list[RequestRecord])


def encode(records: list[RequestRecord]) -> bytes:
    return msgspec.msgpack.encode(records)


def decode(data: bytes) -> list[RequestRecord]:
    """Raises msgspec.DecodeError."""
    return _decoder.decode(data)
