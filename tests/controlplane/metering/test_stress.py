"""The ledger under disconnects, errors, killed gateways and a restarted Valkey: the short form."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Any

import pytest

from tests.controlplane.inference.conftest import write_tiny_model
from tests.controlplane.metering.stress import Stress
from tests.reporting import Report

pytestmark = [pytest.mark.integration, pytest.mark.django_db(transaction=True)]


def test_the_ledger_is_exact_and_no_reservation_leaks(services: Any, tmp_path: Path, report: Report) -> None:
    from django.db import connection

    from tests.controlplane.inference.live import _database_url

    model = tmp_path / "tiny-model"
    write_tiny_model(model)
    database = _database_url(str(connection.settings_dict["NAME"]))
    with tempfile.TemporaryDirectory(prefix="gw-") as folder:
        plan = Stress(requests=300, kills=1, valkey_restarts=1, seed=7)
        with plan.running(database=database, folder=Path(folder), model=model) as run:
            asyncio.run(run.go())
            run.settle()
            outcomes = run.check()
    assert outcomes["stop"] > 100
    assert outcomes["disconnected"] > 10
    report(f"ledger after 300 requests: {dict(outcomes)}; clients saw {dict(run.outcomes.counted)}")
