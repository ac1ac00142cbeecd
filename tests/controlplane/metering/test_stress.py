"""The ledger under disconnects, errors, killed gateways and a restarted Valkey: the short form."""

from __future__ import annotations

import asyncio
import importlib
import tempfile
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis

from controlplane.accounts import invalidation
from controlplane.accounts.limits import Limits
from controlplane.accounts.models import APIKey, Tenant
from controlplane.accounts.permissions import SYSTEM, Scope
from controlplane.accounts.services import key_create, key_revoke, key_set_limits
from tests.controlplane.inference.conftest import write_tiny_model
from tests.controlplane.metering.stress import TENANT, Run, Stress
from tests.controlplane.waiting import wait_until
from tests.reporting import Report

pytestmark = [pytest.mark.integration, pytest.mark.django_db(transaction=True)]


def check_limits(run: Run) -> None:
    """On the running gateway: headers, 429 with `retry-after`, 402, and a revocation that is heard within a second."""
    tenant = Tenant.objects.get(slug=TENANT)

    def key(**limits: int) -> tuple[APIKey, dict[str, str]]:
        made, raw = key_create(actor=SYSTEM, tenant=tenant, name="x", scopes=[Scope.INFERENCE], limits=Limits(**limits))
        return made, {"authorization": f"Bearer {raw}"}

    def ask(headers: dict[str, str]) -> httpx.Response:
        body = {"model": "tiny", "max_tokens": 20, "messages": [{"role": "user", "content": "Hi"}]}
        return httpx.post(f"{run.gateway.url}/v1/chat/completions", json=body, headers=headers, timeout=30)

    def announce() -> None:
        """Again, on the Valkey of this gateway: this process has another."""
        with redis.Redis.from_url(run.valkey.url) as client:
            client.publish(invalidation.CHANNEL, made.key_hash)

    made, narrow = key(requests_per_minute=2)
    _, broke = key(budget_micro_usd=0)
    run.queue.turn()  # tells the Valkey of this gateway what is spent: the service told this process's
    answers = [ask(narrow) for _ in range(3)]
    assert answers[0].headers["x-ratelimit-limit-requests"] == "2"
    assert answers[0].headers["x-ratelimit-remaining-requests"] == "1"
    assert answers[2].status_code == 429
    assert int(answers[2].headers["retry-after"]) > 20
    assert answers[2].headers["x-ratelimit-remaining-requests"] == "0"
    wait_until(lambda: ask(broke).status_code == 402, "the budget of nothing is known, and refuses")
    key_set_limits(actor=SYSTEM, key=made, limits=Limits(requests_per_minute=60_000))
    announce()
    wait_until(lambda: ask(narrow).headers.get("x-ratelimit-limit-requests") == "60000", "new limits are heard")
    key_revoke(actor=SYSTEM, key=made)
    announce()
    wait_until(lambda: ask(narrow).status_code == 401, "the revocation is heard")


def prices_as_migrated() -> None:
    """A test with transactions of its own empties every table behind it, the price book too."""
    from django.apps import apps

    from controlplane.metering.models import PriceBook

    if not PriceBook.objects.exists():
        importlib.import_module("migrations.metering.0002_price_book").forward(apps, None)


def test_the_ledger_is_exact_and_no_reservation_leaks(services: Any, tmp_path: Path, report: Report) -> None:
    from django.db import connection

    from tests.controlplane.inference.live import _database_url, forget_usage

    prices_as_migrated()
    model = tmp_path / "tiny-model"
    write_tiny_model(model)
    database = _database_url(str(connection.settings_dict["NAME"]))
    with tempfile.TemporaryDirectory(prefix="gw-") as folder:
        plan = Stress(requests=300, kills=1, valkey_restarts=1, seed=7)
        try:
            with plan.running(database=database, folder=Path(folder), model=model) as run:
                check_limits(run)
                asyncio.run(run.go())
                run.settle()
                outcomes = run.check()
        finally:
            forget_usage()
    assert outcomes["stop"] > 100
    assert outcomes["disconnected"] > 10
    report(f"ledger after 300 requests: {dict(outcomes)}; clients saw {dict(run.outcomes.counted)}")
