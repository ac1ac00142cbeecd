"""Short commands: their failure in words, and nothing left of one that was interrupted."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from controlplane.launcher.errors import LaunchError
from controlplane.launcher.process import Command, ProcessRecord, Registry
from controlplane.launcher.tasks import Tasks


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    return Registry(tmp_path / "processes.json")


@pytest.fixture
def tasks(registry: Registry, tmp_path: Path) -> Tasks:
    return Tasks(registry, tmp_path / "logs")


def python(code: str) -> Command:
    return Command(name="task", argv=(sys.executable, "-c", code), env=dict(os.environ))


def test_output_is_progress_and_a_failure_its_last_words(tasks: Tasks, registry: Registry) -> None:
    lines: list[str] = []
    with pytest.raises(LaunchError, match="the pantry is locked"):
        tasks.run(python("print('half way', flush=True); raise SystemExit('the pantry is locked')"), lines.append)
    assert lines == ["half way", "the pantry is locked"]
    assert registry.read() == {}


@pytest.mark.usefixtures("interruptible")
def test_a_task_ends_with_who_waits_for_it(tasks: Tasks, registry: Registry) -> None:
    seen: list[ProcessRecord | None] = []

    def interrupt(line: str) -> None:
        seen.append(ProcessRecord.of(int(line)))
        os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        tasks.run(python("import os, time; print(os.getpid(), flush=True); time.sleep(60)"), interrupt)
    (record,) = seen
    assert record is not None
    assert record.process() is None
    assert registry.read() == {}


def test_a_command_that_was_killed_is_not_one_that_took_too_long(tasks: Tasks) -> None:
    with pytest.raises(LaunchError):
        tasks.run(python("import os, signal; os.kill(os.getpid(), signal.SIGKILL)"), timeout_s=60)


def test_a_command_past_its_time_is_ended(tasks: Tasks, registry: Registry) -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        tasks.run(python("import time; time.sleep(600)"), timeout_s=0.5)
    assert registry.read() == {}
