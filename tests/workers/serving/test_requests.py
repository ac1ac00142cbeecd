"""What is told of a request that ended."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from workers.protocol import Address, ErrorCode, RequestId
from workers.records import decode, encode
from workers.serving.counters import Counters
from workers.serving.requests import Live, Requests, Way

SILENT = cast(Any, SimpleNamespace(requests=set(), send=lambda frame: None, hello=SimpleNamespace(peer="test")))


def live(request_id: str, **changes: Any) -> Live:
    fields = {"way": Way.LOCAL, "arrived": 0.0, "deadline": 1.0, "prompt_tokens": 10}
    return Live(request_id=RequestId(request_id), connection=SILENT, **{**fields, **changes})


def test_each_request_that_ends_leaves_one_record() -> None:
    requests = Requests(4, Counters())
    requests.add(live("ran", scheduled_at=1.0, hit_tokens=6, store_hit_tokens=4, output_tokens=3))
    requests.add(live("never-ran"))
    requests.end(RequestId("ran"), "stop")
    requests.end(RequestId("ran"), "stop")
    requests.fail(RequestId("never-ran"), ErrorCode.QUEUE_FULL, "full")
    ran, never = decode(encode([ended.record(Address(worker="w", epoch=2)) for ended in requests.ended]))
    assert (ran.pool_hit_tokens, ran.store_hit_tokens, ran.miss_tokens, ran.output_tokens) == (2, 4, 4, 3)
    assert (ran.worker, ran.epoch, ran.outcome) == ("w", 2, "stop")
    assert (never.miss_tokens, never.outcome) == (0, "queue_full")
