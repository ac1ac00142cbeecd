"""Starting again, stopping, crashing: nothing is lost and nothing is left behind. A second system beside the first."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator

import httpx
import pytest

from tests.reporting import Report
from tests.running import MODEL, READY_LINE, STOP_TIMEOUT_S, System

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def second(system: System, report: Report) -> Iterator[System]:
    """A second one beside the session's: another data folder, another port."""
    other = System.new()
    try:
        report(f"first run ready after {other.start():.1f} s")
        yield other
    finally:
        other.destroy()


def answers(system: System) -> bool:
    reply = system.client(timeout=60).chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": "Say hello."}], max_tokens=4
    )
    return bool(reply.choices[0].message.content)


def names(system: System) -> list[str]:
    return [f"{process.pid} {' '.join(process.cmdline())[:120]}" for process in system.processes()]


def test_two_run_side_by_side(system: System, second: System) -> None:
    assert answers(system)
    assert answers(second)
    headers = {"Authorization": f"Bearer {second.first_run['api_key']}"}
    assert httpx.get(f"{system.url}/v1/models", headers=headers).status_code == 401


def test_ctrl_c_stops_everything_and_a_second_one_is_harmless(second: System, report: Report) -> None:
    started = time.monotonic()
    assert second.launcher is not None
    second.launcher.send_signal(signal.SIGINT)
    time.sleep(0.3)
    second.launcher.send_signal(signal.SIGINT)
    assert second.launcher.wait(STOP_TIMEOUT_S) == 0
    report(f"stopped after {time.monotonic() - started:.1f} s")
    assert names(second) == []


def test_a_second_run_reuses_everything(second: System, report: Report) -> None:
    first_run = (second.home / "first-run.json").read_bytes()
    model = (second.home / "models" / MODEL / "model.json").stat().st_mtime_ns
    printed = second.output.count(second.first_run["admin_password"])
    report(f"second run ready after {second.start():.1f} s")
    assert (second.home / "first-run.json").read_bytes() == first_run
    assert (second.home / "models" / MODEL / "model.json").stat().st_mtime_ns == model
    assert second.output.count(second.first_run["admin_password"]) == printed
    assert answers(second)


def test_make_down_from_another_terminal(second: System, report: Report) -> None:
    started = time.monotonic()
    result = second.down()
    report(f"stopped after {time.monotonic() - started:.1f} s")
    assert result.returncode == 0, result.stderr
    assert "Galley is stopped" in result.stdout
    assert names(second) == []
    assert "nothing runs" in second.down().stdout


def test_make_down_after_the_launcher_was_killed(second: System) -> None:
    second.start()
    assert second.launcher is not None
    second.launcher.kill()
    second.launcher.wait()
    assert names(second) != []
    result = second.down()
    assert result.returncode == 0, result.stderr
    assert names(second) == []


def test_make_up_after_the_launcher_was_killed(second: System) -> None:
    second.start()
    assert second.launcher is not None
    second.launcher.kill()
    second.launcher.wait()
    second.start()
    assert second.output.count(READY_LINE) >= 4
    assert answers(second)
    assert second.interrupt() == 0
    assert names(second) == []
