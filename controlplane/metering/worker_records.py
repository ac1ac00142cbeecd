"""What workers say of the requests that ended there: from their stream into a table, for reconciliation only."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final, cast

import msgspec
import redis

from controlplane.metering.events import moment
from controlplane.metering.models import WorkerRecord
from workers.records import RECORDS_STREAM, RequestRecord, decode

BATCH: Final = 1000
KEPT: Final = timedelta(days=30)
PRUNE_BATCH: Final = 10_000


def take(client: redis.Redis, *, batches: int = 20) -> int:
    """Everything on the stream; how many. A record that comes twice is kept once. Raises redis.RedisError."""
    taken = 0
    for _ in range(batches):
        entries = cast("list[tuple[bytes, dict[bytes, bytes]]]", client.xrange(RECORDS_STREAM, count=BATCH))
        if not entries:
            break
        rows = [_row(record) for _, fields in entries for record in _records(fields)]
        WorkerRecord.objects.bulk_create(rows, ignore_conflicts=True)
        client.xdel(RECORDS_STREAM, *(identifier for identifier, _ in entries))
        taken += len(rows)
    return taken


def _records(fields: dict[bytes, bytes]) -> list[RequestRecord]:
    try:
        return decode(fields[b"r"])
    except (msgspec.DecodeError, KeyError):
        return []  # of another version: reconciliation shows the requests as unrecorded


def _row(record: RequestRecord) -> WorkerRecord:
    return WorkerRecord(
        attempt_id=record.attempt_id,
        request_id=record.attempt_id.partition(".")[0],
        worker=record.worker,
        epoch=record.epoch,
        way=record.way,
        outcome=record.outcome,
        ended_at=moment(record.ended_us),
        pool_hit_tokens=record.pool_hit_tokens,
        store_hit_tokens=record.store_hit_tokens,
        miss_tokens=record.miss_tokens,
        output_tokens=record.output_tokens,
    )


def prune(*, now: datetime) -> int:
    """Delete records older than KEPT, in bounded batches; how many."""
    gone = 0
    while True:
        oldest = WorkerRecord.objects.filter(ended_at__lt=now - KEPT).order_by("ended_at").values("pk")[:PRUNE_BATCH]
        count, _ = WorkerRecord.objects.filter(pk__in=oldest).delete()
        gone += count
        if count < PRUNE_BATCH:
            return gone
