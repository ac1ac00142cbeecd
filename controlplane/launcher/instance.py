"""One data folder, one launcher: the lock on it, what an earlier one left running, and who is in the way."""

from __future__ import annotations

import fcntl
import json
import os
import socket
from dataclasses import asdict
from pathlib import Path

import psutil

from controlplane.launcher.errors import LaunchError
from controlplane.launcher.process import ProcessRecord, Registry
from workers.home import Home


class Instance:
    """The launcher's side of a data folder. `take()` holds the lock until the process ends."""

    def __init__(self, home: Home) -> None:
        self.home = home
        self.registry = Registry(home.state / "processes.json")
        self._owner = home.state / "launcher.json"
        self._lock: int | None = None

    def take(self) -> None:
        """Raises LaunchError when another launcher runs on this folder."""
        for folder in (self.home.root, self.home.state, self.home.logs):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(self.home.state / "launcher.lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            other = self.owner()
            who = f" (process {other.pid})" if other is not None else ""
            raise LaunchError(
                f"Galley already runs on {self.home.root}{who}",
                "Stop it with `make down`, or set GALLEY_HOME and PORT to run a second one beside it.",
            ) from None
        self._lock = descriptor
        ours = ProcessRecord.of(os.getpid())
        assert ours is not None
        temporary = self._owner.with_suffix(".tmp")
        temporary.write_text(json.dumps(asdict(ours)))
        temporary.replace(self._owner)

    def release(self) -> None:
        """After everything was stopped."""
        self._owner.unlink(missing_ok=True)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def owner(self) -> ProcessRecord | None:
        """The launcher that runs on this folder."""
        record = _read_record(self._owner)
        return record if record is not None and record.process() is not None else None

    def engines(self) -> list[ProcessRecord]:
        """Worker processes that a node agent of this data folder started, and that still run."""
        records = [_read_record(path) for path in sorted((self.home.state / "workers").glob("*/process.json"))]
        return [record for record in records if record is not None and record.process() is not None]


def require_free_port(host: str, port: int) -> None:
    """Raises LaunchError where something listens on it already, or the address is not this machine's."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host.strip("[]"), port))
        except PermissionError:
            raise LaunchError(f"port {port} needs root", "Choose a port of 1024 or more: PORT=8000 make up.") from None
        except OSError as error:
            who = _listener(port)
            raise LaunchError(
                f"port {port} on {host} cannot be used: {who or error.strerror}",
                f"Choose another one, for example: PORT={port + 1} make up.",
            ) from None


def _listener(port: int) -> str | None:
    """Who listens on `port`, as far as the system tells us."""
    try:
        for connection in psutil.net_connections(kind="tcp"):
            if connection.status == psutil.CONN_LISTEN and connection.laddr and connection.laddr.port == port:
                if connection.pid is None:
                    return "another process listens on it"
                return f"process {connection.pid} ({psutil.Process(connection.pid).name()}) listens on it"
    except (psutil.AccessDenied, psutil.NoSuchProcess):
        return None
    return None


def _read_record(path: Path) -> ProcessRecord | None:
    """`pid` and `create_time` of a file that names a process; None where there is none, or a damaged one."""
    try:
        raw = json.loads(path.read_text())
        return ProcessRecord(int(raw["pid"]), float(raw["create_time"]))
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None
