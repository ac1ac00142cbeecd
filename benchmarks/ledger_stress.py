"""Ten thousand requests with disconnects, errors, killed gateways and a restarted Valkey; then the ledger is checked.

Stub workers behind a real gateway, PostgreSQL and Valkey. It fails where a row is wrong or a reservation is left.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from pathlib import Path


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--kills", type=int, default=8, help="of the gateway, with SIGKILL")
    parser.add_argument("--valkey-restarts", type=int, default=3, help="with SIGKILL too")
    parser.add_argument("--concurrency", type=int, default=24)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()

    import django

    from tests import settings as scratch  # a data folder of its own, before Django reads its settings

    django.setup()
    from django.core.management import call_command

    from controlplane.launcher.services import EmbeddedServices
    from tests.controlplane.inference.conftest import write_tiny_model
    from tests.controlplane.metering.stress import Stress

    with (
        EmbeddedServices(scratch.HOME, postgres=scratch.POSTGRES, valkey=scratch.VALKEY),
        tempfile.TemporaryDirectory(prefix="gw-") as folder,
    ):
        call_command("migrate", verbosity=0)
        model = Path(folder) / "model" / "tiny-model"
        write_tiny_model(model)
        plan = Stress(
            requests=options.requests,
            kills=options.kills,
            valkey_restarts=options.valkey_restarts,
            concurrency=options.concurrency,
            seed=options.seed,
        )
        with plan.running(database=scratch.POSTGRES.url, folder=Path(folder), model=model) as run:
            started = time.monotonic()
            asyncio.run(run.go())
            seconds = time.monotonic() - started
            run.settle()
            outcomes = run.check()
    figures = {
        "requests": options.requests,
        "gateway kills": options.kills,
        "Valkey kills": options.valkey_restarts,
        "seconds": round(seconds, 1),
        "rows": sum(outcomes.values()),
        "by outcome": dict(outcomes.most_common()),
        "clients saw": dict(run.outcomes.counted.most_common()),
        "wrong rows": 0,
        "reservations left": 0,
    }
    for name, value in figures.items():
        print(f"{name:18} {value}")
    if options.json is not None:
        options.json.write_text(json.dumps(figures))
    return 0


if __name__ == "__main__":
    sys.exit(main())
