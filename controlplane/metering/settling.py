"""From the usage stream, and from journals of gateways that died, into the ledger. Runs in the control queue."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Final, cast

import msgspec
import redis
from django.db import connection

from controlplane.metering import events as usage
from controlplane.metering.budgets import ledgered
from controlplane.metering.events import ACKS_TTL_S, USAGE_STREAM, UsageEvent, acks_key
from controlplane.metering.journal import abandoned, read_events, remove
from controlplane.metering.ledger import priced, usage_record
from controlplane.metering.limit_scripts import REFUND, SETTLE, gateway_key, nano_of_pico
from controlplane.metering.pricing import price_table
from controlplane.metering.reservations import decode_reservation, refund_call, settle_call

BATCH: Final = 500
SETTLING_LOCK: Final = 0x6A11E011
"""PostgreSQL advisory lock, of the session: one task at a time empties the stream."""

log = logging.getLogger(__name__)


def settle_stream(client: redis.Redis, *, batches: int = 100) -> int:
    """Everything on the stream into the ledger; how many rows are new. Raises redis.RedisError and DatabaseError.

    An entry goes when the ledger has it, and its gateway is told; whatever breaks off in between is done again.
    """
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_try_advisory_lock(%s)", [SETTLING_LOCK])
        if not cursor.fetchone()[0]:
            return 0
    try:
        new = 0
        for _ in range(batches):
            entries = cast("list[tuple[bytes, dict[bytes, bytes]]]", client.xrange(USAGE_STREAM, count=BATCH))
            if not entries:
                break
            new += _settle_batch(client, entries)
        return new
    finally:
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_advisory_unlock(%s)", [SETTLING_LOCK])


def _settle_batch(client: redis.Redis, entries: Sequence[tuple[bytes, dict[bytes, bytes]]]) -> int:
    events = []
    for identifier, fields in entries:
        try:
            events.append(usage.decode(fields[b"e"]))
        except (msgspec.DecodeError, KeyError):
            # Its gateway sends it again, from another version perhaps; it must not hold up the others.
            log.exception("usage entry %s is not understood and is dropped", identifier.decode())
    new = usage_record(events)
    ledgered(client, events)
    acks: dict[str, list[int]] = defaultdict(list)
    for event in events:
        acks[event.journal].append(event.intent.seq)
    with client.pipeline(transaction=True) as pipe:
        pipe.xdel(USAGE_STREAM, *(identifier for identifier, _ in entries))
        for journal, numbers in acks.items():
            pipe.rpush(acks_key(journal), *numbers)
            pipe.expire(acks_key(journal), ACKS_TTL_S)
        pipe.execute()
    return len(new)


def settle_journals(client: redis.Redis, root: Path) -> int:
    """Settle what gateways that died on this host left behind; how many requests that were. Removes the journals.

    A journal goes when the ledger has its requests *and* Valkey has none of their reservations any more. Raises
    redis.RedisError, DatabaseError and OSError; then what is left is done the next time.
    """
    settled = 0
    with abandoned(root) as folders:
        for folder in folders:
            events = read_events(folder)
            new = usage_record(events)
            _release(client, folder.name, events)
            remove(folder)
            settled += len(new)
            log.info("journal %s: %d requests, %d of them new to the ledger", folder.name, len(events), len(new))
    return settled


def _release(client: redis.Redis, journal: str, events: Sequence[UsageEvent]) -> None:
    table = price_table()
    for event in events:
        call = settle_call(event, cost_nano=nano_of_pico(priced(event, table).amount), publish=False)
        client.eval(SETTLE, len(call.keys), *call.keys, *call.arguments)
    ledgered(client, events)
    # Reserved, and dead before it was written down: no worker heard of those.
    left = cast("dict[bytes, bytes]", client.hgetall(gateway_key(journal)))
    for request_id, data in left.items():
        call = refund_call(request_id.decode(), decode_reservation(data), journal=journal)
        client.eval(REFUND, len(call.keys), *call.keys, *call.arguments)
    client.delete(acks_key(journal))
