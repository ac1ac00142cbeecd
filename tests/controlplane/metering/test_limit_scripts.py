"""The scripts on a real Valkey: each change of the limits is one step, and twice is once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import pytest
import redis

from controlplane.metering import limit_scripts as scripts
from controlplane.metering.events import Ended, Intent, Subject, UsageEvent
from controlplane.metering.limit_scripts import gateway_key, money_key, subject_keys
from controlplane.metering.reservations import (
    Reservation,
    decode_reservation,
    encode_reservation,
    refund_call,
    settle_call,
)

pytestmark = pytest.mark.integration

MONTH = "202611"
ADMITTED_US = 1_795_000_000 * 10**6  # in that month
NAME = "t:acme"
SUBJECT = Subject(NAME, tokens_per_minute=1000, requests_per_minute=10, budgeted=True)


class Limits:
    """One subject with limits of 10 requests, 1,000 tokens, 2 at a time and 5,000 nano-dollars."""

    def __init__(self, client: redis.Redis) -> None:
        self.client = client
        self.limits = [10, 1000, 2, 5000]

    def reserve(self, request_id: str, *, tokens: int = 100, cost: int = 1000, ttl_ms: int = 60_000) -> list[int]:
        undo = encode_reservation(Reservation(MONTH, tokens, [SUBJECT]))
        keys = [*subject_keys([NAME], MONTH), gateway_key("j")]
        arguments = [request_id, ttl_ms, tokens, cost, undo, *self.limits]
        return cast("list[int]", self.client.eval(scripts.RESERVE, len(keys), *keys, *arguments))

    def settle(self, request_id: str, *, used: int, cost: int, publish: bool = False, local: bool = False) -> None:
        event = UsageEvent(
            journal="j",
            intent=Intent(
                seq=1, slot=0, request_id=request_id, tenant="acme", caller="x", model="m", deployment="d", gateway="g",
                admitted_us=ADMITTED_US, reserved_tokens=100, subjects=[SUBJECT], local=local,
            ),
            final=Ended(seq=1, outcome="stop", ended_us=ADMITTED_US, output=used),
        )  # fmt: skip
        call = settle_call(event, cost_nano=cost, publish=publish)
        self.client.eval(scripts.SETTLE, len(call.keys), *call.keys, *call.arguments)

    def spent(self, nano: int, *request_ids: str) -> None:
        self.client.eval(scripts.LEDGERED, 1, money_key(NAME, MONTH), nano, 1000, *request_ids)

    @property
    def money(self) -> dict[str, int]:
        found = cast("dict[bytes, bytes]", self.client.hgetall(money_key(NAME, MONTH)))
        return {name.decode(): int(value) for name, value in found.items()}

    @property
    def active(self) -> int:
        return cast(int, self.client.zcard(f"galley:limits:{NAME}:active"))


@pytest.fixture
def limits(valkey_url: str) -> Iterator[Limits]:
    with redis.Redis.from_url(valkey_url) as client:
        yield Limits(client)


def test_nobody_spends_a_budget_that_nobody_has_counted(limits: Limits) -> None:
    assert limits.reserve("a")[:2] == [scripts.BUDGET_UNKNOWN, 1]
    limits.spent(0)
    assert limits.reserve("a") == [scripts.OK, 0, 0, 9, 900]
    assert limits.money == {"spent": 0, "pending": 1000, "r:a": 1000}


def test_a_request_is_reserved_settled_and_ledgered(limits: Limits) -> None:
    limits.spent(0)
    limits.reserve("a")
    for _ in range(2):  # twice is once
        limits.settle("a", used=30, cost=400, publish=True)
        assert limits.money == {"spent": 0, "pending": 400, "r:a": 400}
    assert limits.active == 0
    assert limits.reserve("b")[3:] == [8, 870]
    for _ in range(2):
        limits.spent(400, "a")
        assert limits.money == {"spent": 400, "pending": 1000, "r:b": 1000}
    assert limits.client.hkeys(gateway_key("j")) == [b"b"]


def test_a_request_that_costs_nothing_leaves_nothing(limits: Limits) -> None:
    limits.spent(0)
    limits.reserve("a")
    limits.settle("a", used=0, cost=0)
    limits.spent(0, "a")
    assert limits.money == {"spent": 0, "pending": 0}


def test_what_is_spent_never_goes_back(limits: Limits) -> None:
    limits.spent(400)
    limits.spent(300)
    assert limits.money["spent"] == 400


def test_a_reservation_that_nothing_came_of_is_as_if_it_had_never_been(limits: Limits) -> None:
    limits.spent(0)
    limits.reserve("a")
    data = cast("dict[bytes, Any]", limits.client.hgetall(gateway_key("j")))[b"a"]
    call = refund_call("a", decode_reservation(data), journal="j")
    for _ in range(2):
        limits.client.eval(scripts.REFUND, len(call.keys), *call.keys, *call.arguments)
    assert limits.money == {"spent": 0, "pending": 0}
    assert limits.active == 0
    assert limits.reserve("b")[3:] == [9, 900]


def test_each_limit_refuses_and_changes_nothing(limits: Limits) -> None:
    limits.spent(0)
    limits.limits = [1, 1000, 9, 5000]
    assert limits.reserve("a")[0] == scripts.OK
    code, at, wait, *_ = limits.reserve("b")
    assert (code, at) == (scripts.REQUESTS, 1)
    assert 50_000 < wait <= 60_000
    limits.limits = [-1, 1000, 9, 5000]
    assert limits.reserve("c", tokens=950)[0] == scripts.TOKENS
    limits.limits = [-1, 1000, 1, 5000]
    assert limits.reserve("d")[0] == scripts.CONCURRENCY
    limits.limits = [-1, 1000, 9, 1500]
    assert limits.reserve("e")[0] == scripts.BUDGET
    assert limits.active == 1
    assert limits.money == {"spent": 0, "pending": 1000, "r:a": 1000}


def test_more_tokens_than_the_limit_wait_for_a_full_bucket(limits: Limits) -> None:
    limits.spent(0)
    assert limits.reserve("a", tokens=5000)[0] == scripts.OK
    assert limits.reserve("b", tokens=5000)[0] == scripts.TOKENS


def test_a_reservation_expires_with_its_money(limits: Limits) -> None:
    limits.spent(0)
    limits.limits = [100, 1000, 1, 5000]
    limits.reserve("a", ttl_ms=1)
    limits.client.ping()
    while (reply := limits.reserve("b"))[0] == scripts.CONCURRENCY:
        pass
    assert reply[0] == scripts.OK
    assert limits.money == {"spent": 0, "pending": 1000, "r:b": 1000}


def test_what_a_gateway_admitted_by_itself_is_counted_afterwards(limits: Limits) -> None:
    limits.spent(0)
    limits.settle("a", used=300, cost=50, local=True)
    assert limits.reserve("b")[3:] == [8, 600]


def test_reserving_twice_is_reserving_once(limits: Limits) -> None:
    limits.spent(0)
    limits.limits = [1, 100, 1, 1000]  # every one of them is used up by the first
    first = limits.reserve("a")
    assert first == [scripts.OK, 0, 0, 0, 0]
    assert limits.reserve("a") == first
    assert limits.active == 1
    assert limits.money == {"spent": 0, "pending": 1000, "r:a": 1000}
