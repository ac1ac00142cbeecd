"""Supervision with real processes: restarts with growing delays, a fatal crash loop, an orderly stop."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from controlplane.launcher.errors import LaunchError
from controlplane.launcher.process import Command, ProcessRecord, Registry
from controlplane.launcher.supervisor import FATAL_DEATHS, Supervisor
from workers.home import Home


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def supervisor(tmp_path: Path, said: list[str]) -> Supervisor:
    (tmp_path / "state").mkdir()
    return Supervisor(Home(tmp_path), Registry(tmp_path / "state" / "processes.json"), said.append)


def python(name: str, code: str, grace_s: float = 5.0) -> Command:
    return Command(name=name, argv=(sys.executable, "-c", code), env=dict(os.environ), stop_grace_s=grace_s)


def tick_until(supervisor: Supervisor, done: Callable[[], bool], timeout_s: float = 20.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not done():
        assert time.monotonic() < deadline
        supervisor.tick()
        time.sleep(0.02)


def test_a_process_that_is_killed_comes_back(supervisor: Supervisor, said: list[str]) -> None:
    process = supervisor.start(python("sleeper", "import time; time.sleep(60)"))
    process.kill()
    tick_until(supervisor, lambda: supervisor.running().get("sleeper", process.pid) != process.pid)
    assert said == [line for line in said if line.startswith("sleeper ended (killed by signal 9); starting it again")]
    supervisor.stop("sleeper")
    assert supervisor.running() == {}


def test_delays_grow(supervisor: Supervisor, said: list[str]) -> None:
    supervisor.ready = True
    supervisor.start(python("failing", "raise SystemExit(3)"))
    tick_until(supervisor, lambda: len(said) == 3)
    assert [line.split(" in ")[1].split(" s;")[0] for line in said] == ["0.5", "1", "2"]
    supervisor.stop("failing")


def test_a_crash_loop_before_readiness_is_an_error(supervisor: Supervisor, said: list[str]) -> None:
    supervisor.start(python("failing", "raise SystemExit('the oven is cold')"))
    with pytest.raises(LaunchError, match=r"failing keeps ending .*the oven is cold"):
        tick_until(supervisor, lambda: False)
    assert len(said) == FATAL_DEATHS - 1
    supervisor.stop("failing")


def test_a_deaf_process_is_killed_past_its_grace_period(supervisor: Supervisor, tmp_path: Path) -> None:
    deaf = "import signal as s, time; s.signal(s.SIGTERM, s.SIG_IGN); print('deaf', flush=True); time.sleep(60)"
    process = supervisor.start(python("deaf", deaf, grace_s=0.2))
    record = ProcessRecord.of(process.pid)
    assert record is not None
    tick_until(supervisor, lambda: "deaf" in (tmp_path / "logs" / "deaf.log").read_text())
    supervisor.stop("deaf")
    assert record.process() is None
    assert Registry(tmp_path / "state" / "processes.json").read() == {}


def test_two_of_a_name_are_refused(supervisor: Supervisor) -> None:
    supervisor.start(python("one", "import time; time.sleep(60)"))
    with pytest.raises(ValueError, match="one"):
        supervisor.start(python("one", ""))
    supervisor.stop("one")
