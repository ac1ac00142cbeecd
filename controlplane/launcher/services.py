"""PostgreSQL and Valkey together, started side by side for as long as a block runs (tests and tools use this)."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass

from controlplane.launcher.postgres import EmbeddedPostgres
from controlplane.launcher.process import Command, ProcessRecord, kill_group, spawn
from controlplane.launcher.valkey import EmbeddedValkey
from workers.home import Home


@dataclass(slots=True)
class Running:
    command: Command
    process: subprocess.Popen[bytes]

    @property
    def record(self) -> ProcessRecord | None:
        return ProcessRecord.of(self.process.pid) if self.process.poll() is None else None

    def stop(self) -> None:
        """The stop signal, then SIGKILL for its process group past the grace period."""
        if self.process.poll() is not None:
            return
        record = ProcessRecord.of(self.process.pid)
        self.process.send_signal(self.command.stop_signal)
        try:
            self.process.wait(self.command.stop_grace_s)
        except subprocess.TimeoutExpired:
            if record is not None:
                kill_group(record)
            self.process.wait(5)


class EmbeddedServices:
    """Both embedded services of one data folder, for as long as the `with` block runs."""

    def __init__(
        self, home: Home, *, postgres: EmbeddedPostgres | None = None, valkey: EmbeddedValkey | None = None
    ) -> None:
        self.home = home
        self.postgres = postgres or EmbeddedPostgres(home)
        self.valkey = valkey or EmbeddedValkey(home)
        self._running: list[Running] = []

    def __enter__(self) -> EmbeddedServices:
        try:
            self._start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def stop(self) -> None:
        for running in reversed(self._running):
            running.stop()
        self._running.clear()

    def _start(self) -> None:
        logs = self.home.logs
        self.postgres.prepare()
        self.valkey.prepare()
        for command in (self.postgres.command(), self.valkey.command()):
            self._running.append(Running(command, spawn(command, logs / f"{command.name}.log")))
        postgres, valkey = self._running
        self.postgres.wait_ready(postgres.process, log=logs / "postgres.log")
        self.valkey.wait_ready(valkey.process, log=logs / "valkey.log")
        self.postgres.create_database()
