"""Processes are found again by id and create time, and whole groups end together."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from controlplane.launcher.process import (
    Command,
    ProcessRecord,
    Registry,
    kill_group,
    send,
    signals_deferred,
    spawn,
    wait_gone,
)

SLEEP = (sys.executable, "-c", "import time; time.sleep(60)")
PARENT = (
    sys.executable,
    "-c",
    "import subprocess, sys, time; c = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)']);"
    "print(c.pid, flush=True); time.sleep(60)",
)


def command(argv: tuple[str, ...]) -> Command:
    return Command(name="sleeper", argv=argv, env=dict(os.environ))


def test_a_record_knows_its_process_and_no_other(tmp_path: Path) -> None:
    process = spawn(command(SLEEP), tmp_path / "log")
    record = ProcessRecord.of(process.pid)
    assert record is not None
    assert record.process() is not None
    assert ProcessRecord(record.pid, record.create_time - 100).process() is None
    send(record, signal.SIGTERM)
    process.wait(5)
    assert record.process() is None
    assert ProcessRecord.of(process.pid) is None


def test_a_zombie_counts_as_gone(tmp_path: Path) -> None:
    process = spawn(command((sys.executable, "-c", "")), tmp_path / "log")
    record = ProcessRecord(process.pid, psutil.Process(process.pid).create_time())
    assert wait_gone([record], 10.0) == []
    process.wait()


def test_a_child_whose_parent_died_ends_with_the_group(tmp_path: Path) -> None:
    log = tmp_path / "log"
    parent = spawn(command(PARENT), log)
    record = ProcessRecord.of(parent.pid)
    assert record is not None
    deadline = time.monotonic() + 10
    while not log.read_text().strip() and time.monotonic() < deadline:
        time.sleep(0.05)
    child = ProcessRecord.of(int(log.read_text()))
    assert child is not None
    parent.kill()
    parent.wait()
    assert child.process() is not None
    kill_group(record)
    assert wait_gone([child], 5.0) == []


def test_our_own_group_is_safe() -> None:
    ours = ProcessRecord.of(os.getpgrp())
    if ours is None or ours.pid != os.getpgrp():
        pytest.skip("the leader of our group is gone")
    with pytest.raises(ValueError, match="our own"):
        kill_group(ours)


@pytest.mark.usefixtures("interruptible")
def test_a_signal_waits_until_the_block_is_left() -> None:
    steps = []

    @signals_deferred()
    def block() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        steps.append("inside")

    with pytest.raises(KeyboardInterrupt):
        block()
    assert steps == ["inside"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_the_registry_survives_and_forgives(tmp_path: Path) -> None:
    registry = Registry(tmp_path / "processes.json")
    assert registry.read() == {}
    registry.add("one", ProcessRecord(1, 2.5))
    registry.add("two", ProcessRecord(3, 4.5))
    assert Registry(registry.path).read() == {"one": ProcessRecord(1, 2.5), "two": ProcessRecord(3, 4.5)}
    registry.remove("one")
    assert set(registry.read()) == {"two"}
    registry.path.write_text('{"torn": ')
    assert registry.read() == {}


def test_output_goes_to_the_log(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "out.log"
    process = spawn(command((sys.executable, "-c", "import sys; print('out'); print('err', file=sys.stderr)")), log)
    assert process.wait(10) == 0
    assert set(log.read_text().split()) == {"out", "err"}
    assert subprocess.run(["stat", "-c", "%a", log], capture_output=True, text=True).stdout.strip() == "600"
