"""Short-lived commands of ours (`manage.py ...`, `prepare`): their output is progress, their failure an error."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

from controlplane.launcher.process import Command, ProcessRecord, Registry, signals_deferred
from controlplane.launcher.tooling import failure


class Tasks:
    """Runs commands to their end, from any thread; `kill_all` ends those still running."""

    def __init__(self, registry: Registry, log_folder: Path) -> None:
        self._registry = registry
        self._logs = log_folder
        self._running: set[int] = set()
        self._lock = threading.Lock()

    def run(
        self, command: Command, each_line: Callable[[str], None] = lambda line: None, timeout_s: float | None = None
    ) -> None:
        """Raises LaunchError with the command's last words; subprocess.TimeoutExpired past `timeout_s`."""
        log = self._logs / f"{command.name}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        with signals_deferred():
            process = self._start(command)
        expired = threading.Event()
        timer = threading.Timer(timeout_s, self._expire, (process, expired)) if timeout_s is not None else None
        if timer is not None:
            timer.start()
        try:
            tail = self._follow(process, log, each_line)
            status = process.wait()
        finally:
            if timer is not None:
                timer.cancel()
            if process.poll() is None:  # we were interrupted: it goes with us
                self._kill(process.pid)
                process.wait()
            with self._lock:
                self._running.discard(process.pid)
            self._registry.remove(command.name)
        if expired.is_set() and timeout_s is not None:
            raise subprocess.TimeoutExpired(command.argv, timeout_s)
        if status != 0:
            raise failure(f"{command.name} failed", tail, log)

    def _start(self, command: Command) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            command.argv,
            env=dict(command.env),
            cwd=command.cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        with self._lock:
            self._running.add(process.pid)
        record = ProcessRecord.of(process.pid)
        if record is not None:
            self._registry.add(command.name, record)
        return process

    def _expire(self, process: subprocess.Popen[str], expired: threading.Event) -> None:
        if process.returncode is None:  # not reaped: the id is still its own
            expired.set()
            self._kill(process.pid)

    def kill_all(self) -> None:
        with self._lock:
            running = list(self._running)
        for pid in running:
            self._kill(pid)

    @staticmethod
    def _kill(pid: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)

    @staticmethod
    def _follow(process: subprocess.Popen[str], log: Path, each_line: Callable[[str], None]) -> list[str]:
        tail: list[str] = []
        assert process.stdout is not None
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        with os.fdopen(descriptor, "a") as file:
            for line in process.stdout:
                file.write(line)
                file.flush()
                text = line.strip()
                if text:
                    tail = [*tail[-59:], text]
                    each_line(text)
        return tail
