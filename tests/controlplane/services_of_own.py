"""A Valkey of a test's own, to take away and give back while something uses it."""

from __future__ import annotations

from pathlib import Path

from controlplane.launcher.process import spawn
from controlplane.launcher.services import Running
from controlplane.launcher.valkey import EmbeddedValkey
from workers.home import Home


class OwnValkey:
    def __init__(self, folder: Path) -> None:
        self._home = Home(folder)
        self._embedded = EmbeddedValkey(self._home)
        self._embedded.prepare()
        self._running: Running | None = None
        self.url = self._embedded.url

    def start(self) -> None:
        command = self._embedded.command()
        log = self._home.logs / "valkey.log"
        self._running = Running(command, spawn(command, log))
        self._embedded.wait_ready(self._running.process, log=log)

    @property
    def pid(self) -> int:
        """Of the server that runs, to be stopped and continued by signal."""
        assert self._running is not None
        return self._running.process.pid

    def stop(self) -> None:
        if self._running is not None:
            self._running.stop()
            self._running = None
