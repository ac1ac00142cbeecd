"""Operating-system processes: started in sessions of their own, written down, and found again after a crash."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

import psutil

CREATE_TIME_TOLERANCE_S = 2.0
"""psutil derives create times from the boot time, which moves a little when the clock is set."""


@dataclass(frozen=True, slots=True)
class Command:
    """What to run. `user` is the system user to run as (only root can name another)."""

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: Path | None = None
    user: str | None = None
    stop_signal: signal.Signals = signal.SIGTERM
    stop_grace_s: float = 5.0
    """Seconds between the stop signal and SIGKILL."""


@dataclass(frozen=True, slots=True)
class ProcessRecord:
    """A process id with its create time: an id alone may by now belong to somebody else."""

    pid: int
    create_time: float

    @classmethod
    def of(cls, pid: int) -> ProcessRecord | None:
        """The record of a running process, None when there is none."""
        try:
            return cls(pid, psutil.Process(pid).create_time())
        except (psutil.NoSuchProcess, psutil.AccessDenied):  # what we may not look at is nothing that we started
            return None

    def process(self) -> psutil.Process | None:
        """The process while it runs (a zombie does not), None once it is gone or the id was reused."""
        try:
            process = psutil.Process(self.pid)
            if abs(process.create_time() - self.create_time) > CREATE_TIME_TOLERANCE_S:
                return None
            return None if process.status() == psutil.STATUS_ZOMBIE else process
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            return None


class Registry:
    """Records of what this data folder's launcher started, in one small file that survives the launcher."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()

    def read(self) -> dict[str, ProcessRecord]:
        try:
            raw = json.loads(self.path.read_text())
            return {name: ProcessRecord(int(entry["pid"]), float(entry["create_time"])) for name, entry in raw.items()}
        except FileNotFoundError:
            return {}
        except (ValueError, KeyError, TypeError, AttributeError):
            return {}  # torn or foreign file: it names no process that we could prove to be ours

    def add(self, name: str, record: ProcessRecord) -> None:
        with self._lock:
            self._write({**self.read(), name: record})

    def remove(self, name: str) -> None:
        with self._lock:
            records = self.read()
            if records.pop(name, None) is not None:
                self._write(records)

    def _write(self, records: Mapping[str, ProcessRecord]) -> None:
        temporary = self.path.with_name(f".{self.path.name}.tmp")
        temporary.write_text(json.dumps({name: asdict(record) for name, record in records.items()}, indent=1))
        temporary.replace(self.path)


@contextlib.contextmanager
def signals_deferred() -> Iterator[None]:
    """Signals that would end us wait until the block is left: a process that was started is written down as well.

    Handlers run between any two lines of the main thread, so one that raises could lose a process just started.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    before = {signum: signal.getsignal(signum) for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    ours = {signum: handler for signum, handler in before.items() if callable(handler)}
    for signum in ours:
        signal.signal(signum, lambda number, frame: came.append(number))
    try:
        yield
    finally:
        for signum, handler in ours.items():
            signal.signal(signum, handler)
        for number in came:
            signal.raise_signal(number)


def spawn(command: Command, log: Path) -> subprocess.Popen[bytes]:
    """Start `command` in its own session (a terminal's Ctrl-C reaches only the launcher), output appended to `log`."""
    log.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        return subprocess.Popen(
            command.argv,
            env=dict(command.env),
            cwd=command.cwd,
            stdin=subprocess.DEVNULL,
            stdout=descriptor,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            user=command.user,
            group=command.user,
            extra_groups=[] if command.user else None,
        )
    finally:
        os.close(descriptor)


def send(record: ProcessRecord, signum: signal.Signals) -> None:
    """Signal the process if it still runs."""
    process = record.process()
    if process is not None:
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            process.send_signal(signum)


def wait_gone(records: Iterable[ProcessRecord], timeout_s: float) -> list[ProcessRecord]:
    """Wait for processes (children or not) to end; those still running when the time is over."""
    deadline = time.monotonic() + timeout_s
    left = [record for record in records if record.process() is not None]
    while left and time.monotonic() < deadline:
        time.sleep(0.05)
        left = [record for record in left if record.process() is not None]
    return left


def kill_group(record: ProcessRecord) -> None:
    """SIGKILL to everything in the process group that `record` leads or led (`spawn` makes each process a leader).

    A group outlives its leader, and no new process gets a leader's id while its group lives.
    """
    leader = ProcessRecord.of(record.pid)
    if leader is not None and abs(leader.create_time - record.create_time) > CREATE_TIME_TOLERANCE_S:
        return  # the id was reused: the group is gone
    if record.pid == os.getpgrp():
        raise ValueError("refusing to end our own process group")
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(record.pid, signal.SIGKILL)
