"""Keeps processes running: starts them, writes them down, starts them again with back-off, and stops them in order."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from subprocess import Popen

from controlplane.launcher import logs
from controlplane.launcher.errors import LaunchError
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
from workers.home import Home

BACK_OFF_FIRST_S = 0.5
BACK_OFF_MAX_S = 30.0
HEALTHY_AFTER_S = 60.0
"""A process that ran this long starts with the first back-off again."""
FATAL_DEATHS = 4
"""Ends in a row, before the system was ready for the first time, that stop the launcher."""
_ROTATE_EVERY_S = 5.0


@dataclass(slots=True)
class Child:
    command: Command
    process: Popen[bytes]
    record: ProcessRecord
    started: float
    deaths: int = 0
    restart_at: float | None = None
    """Monotonic time of the next start; None while it runs."""


class Supervisor:
    """Not thread-safe: one thread starts, `tick`s and stops."""

    def __init__(self, home: Home, registry: Registry, say: Callable[[str], None]) -> None:
        self._home = home
        self._registry = registry
        self._say = say
        self._children: dict[str, Child] = {}
        self._rotated = time.monotonic()
        self.ready = False
        """Set once the whole system answered: from then on nothing a child does ends the launcher."""

    def start(self, command: Command) -> Popen[bytes]:
        """Start and supervise. The name must be new."""
        if command.name in self._children:
            raise ValueError(f"{command.name} is already supervised")
        return self._spawn(command).process

    def tick(self) -> None:
        """Look after everything once; call it a few times a second. Raises LaunchError (see FATAL_DEATHS)."""
        now = time.monotonic()
        for child in list(self._children.values()):
            if child.restart_at is not None:
                if now >= child.restart_at:
                    self._spawn(child.command, deaths=child.deaths)
            elif child.process.poll() is not None:
                self._died(child, now)
        if now - self._rotated >= _ROTATE_EVERY_S:
            self._rotated = now
            logs.rotate(self._home.logs)

    def signal(self, *names: str) -> None:
        """Ask processes to stop, without waiting: they are not restarted any more."""
        for name in names:
            child = self._children.get(name)
            if child is not None and child.restart_at is None:
                send(child.record, child.command.stop_signal)

    def stop(self, *names: str, within_s: float = 60.0) -> None:
        """Stop processes side by side: signal, grace period (at most `within_s`), then SIGKILL for whole groups."""
        children = [self._children.pop(name) for name in names if name in self._children]
        for child in children:
            send(child.record, child.command.stop_signal)
        grace_s = max((child.command.stop_grace_s for child in children), default=0.0)
        deadline = time.monotonic() + min(grace_s, within_s)
        for child in children:
            _wait(child.process, deadline - time.monotonic())
        for child in children:
            kill_group(child.record)  # also what a process left behind that ended by itself
            _wait(child.process, 2.0)
            self._registry.remove(child.command.name)
        wait_gone([child.record for child in children], 1.0)

    def names(self) -> list[str]:
        return list(self._children)

    def running(self) -> dict[str, int]:
        """Process ids by name."""
        return {name: child.process.pid for name, child in self._children.items() if child.process.poll() is None}

    def _spawn(self, command: Command, deaths: int = 0) -> Child:
        with signals_deferred():
            process = spawn(command, self._home.logs / f"{command.name}.log")
            record = ProcessRecord.of(process.pid) or ProcessRecord(process.pid, time.time())
            child = Child(command, process, record, started=time.monotonic(), deaths=deaths)
            self._children[command.name] = child
            self._registry.add(command.name, record)
        return child

    def _died(self, child: Child, now: float) -> None:
        name = child.command.name
        kill_group(child.record)  # a server killed from outside can leave children that hold its port
        child.deaths = 1 if now - child.started > HEALTHY_AFTER_S else child.deaths + 1
        log = self._home.logs / f"{name}.log"
        how = _describe(child.process.returncode)
        if not self.ready and child.deaths >= FATAL_DEATHS:
            raise LaunchError(f"{name} keeps ending ({how}): {logs.last_line(log)}", f"Its log: {log}")
        delay = min(BACK_OFF_MAX_S, BACK_OFF_FIRST_S * 2 ** (child.deaths - 1))
        child.restart_at = now + delay
        self._say(f"{name} ended ({how}); starting it again in {delay:g} s; its log: {log}")


def _describe(returncode: int | None) -> str:
    if returncode is None:
        return "still running"
    return f"killed by signal {-returncode}" if returncode < 0 else f"exit status {returncode}"


def _wait(process: Popen[bytes], timeout_s: float) -> None:
    """Reap a child; a time-out is the caller's business."""
    deadline = time.monotonic() + max(0.0, timeout_s)
    while process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
