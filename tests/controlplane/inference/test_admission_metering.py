"""A gateway's limits and journal together: what is refused, and what is given back."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from controlplane.accounts.limits import Limits
from controlplane.accounts.permissions import Principal, Scope
from controlplane.inference.admission_metering import Demand, Metering
from controlplane.inference.errors import ApiError
from controlplane.inference.journal import JournalFull
from controlplane.inference.limits import GatewayLimits
from controlplane.metering.events import Counts
from controlplane.metering.pricing import PriceTable
from tests.controlplane.accounts.factories import key_principal

AWAY = "redis://127.0.0.1:1/0"


def caller(**limits: int) -> Principal:
    return replace(key_principal(Scope.INFERENCE), limits=Limits(**limits), root_key="7")


def demand(request_id: str) -> Demand:
    return Demand(request_id, 1, 1, "m", "d")


async def started(root: Path, url: str) -> AsyncIterator[Metering]:
    made = Metering(root, valkey_url=url, gateway="g", limits=GatewayLimits())
    made.start()
    yield made
    await made.stop()


@pytest.fixture
async def alone(tmp_path: Path) -> AsyncIterator[Metering]:
    """Without Valkey."""
    async for made in started(tmp_path, AWAY):
        yield made


async def test_what_the_journal_refuses_gives_its_place_of_the_outage_back(
    alone: Metering, monkeypatch: pytest.MonkeyPatch
) -> None:
    who = caller(concurrent_requests=1)

    async def full(intent: Any) -> None:
        raise JournalFull("no space")

    with monkeypatch.context() as disk:
        disk.setattr(alone.journal, "admit", full)
        with pytest.raises(ApiError, match="recorded"):
            await alone.open(who, demand("a"))
    metered = await alone.open(who, demand("b"))
    with pytest.raises(ApiError, match="requests running"):
        await alone.open(who, demand("c"))
    metered.end(Counts(), "stop")
    await alone.open(who, demand("d"))


async def test_a_request_of_one_outage_takes_no_place_in_the_next(alone: Metering) -> None:
    who = caller(concurrent_requests=1)
    old = await alone.open(who, demand("a"))
    alone._allowance = None  # Valkey was back, and is away again
    await alone.open(who, demand("b"))
    old.end(Counts(), "stop")
    with pytest.raises(ApiError, match="requests running"):
        await alone.open(who, demand("c"))


async def test_budgets_are_not_spent_while_nobody_knows_the_prices(
    alone: Metering, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def reserved(*_: Any) -> None:
        """Valkey says yes."""

    monkeypatch.setattr(alone, "_reserve", reserved)
    with pytest.raises(ApiError) as refusal:
        await alone.open(caller(budget_micro_usd=1), demand("a"))
    assert refusal.value.detail.code == "budget_unavailable"
    await alone.open(caller(requests_per_minute=1), demand("b"))
    alone._prices = PriceTable()
    await alone.open(caller(budget_micro_usd=1), demand("c"))
