"""What a killed launcher left behind is stopped, gently while there is time for it."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from controlplane.launcher.instance import Instance
from controlplane.launcher.process import Command, ProcessRecord, spawn
from controlplane.launcher.stopping import stop_leftovers
from workers.home import Home

DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(600)"


@pytest.mark.timeout(60)
def test_without_time_left_what_does_not_hear_is_killed(tmp_path: Path) -> None:
    instance = Instance(Home(tmp_path))
    instance.take()
    records = []
    for name in ("gateway", "valkey"):
        log = tmp_path / f"{name}.log"
        process = spawn(Command(name=name, argv=(sys.executable, "-c", DEAF), env=dict(os.environ)), log)
        record = ProcessRecord.of(process.pid)
        assert record is not None
        instance.registry.add(name, record)
        records.append(record)
        while "deaf" not in log.read_text():
            time.sleep(0.02)
    assert stop_leftovers(instance, engines=True, until=time.monotonic()) == 2
    assert [record.process() for record in records] == [None, None]
    assert instance.registry.read() == {}
    instance.release()
