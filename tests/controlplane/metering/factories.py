"""Usage events as a gateway makes them."""

from __future__ import annotations

from datetime import datetime
from itertools import count
from typing import Any

from controlplane.metering.events import Ended, Intent, UsageEvent

_numbers = count(1)


def event(at: datetime, *, request_id: str | None = None, outcome: str = "stop", **changes: Any) -> UsageEvent:
    """10 tokens from the pool, 20 from the store, 30 missed, 40 out, unless told otherwise."""
    number = next(_numbers)
    counts = {"pool_hit": 10, "store_hit": 20, "miss": 30, "output": 40}
    counts.update({name: changes.pop(name) for name in tuple(changes) if name in counts})
    microseconds = int(at.timestamp()) * 10**6 + at.microsecond
    fields: dict[str, Any] = {
        "seq": number, "slot": 0, "request_id": request_id or f"req_{number:032x}", "tenant": "acme",
        "caller": "gk-abcdefgh", "key_id": 1, "root_key": 1, "model": "tiny", "deployment": "tiny", "gateway": "g",
        "admitted_us": microseconds,
    }  # fmt: skip
    return UsageEvent(
        journal="j",
        intent=Intent(**{**fields, **changes}),
        final=Ended(seq=number, outcome=outcome, ended_us=microseconds + 5, **counts),
    )
