"""A whole Galley, started by the real launcher on a data folder and a port of its own."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import msgspec
import psutil
import redis
from openai import OpenAI

from workers import snapshots
from workers.node.heartbeat import AgentHeartbeat, heartbeat_key
from workers.protocol import Role
from workers.snapshots import WorkerSnapshot
from workers.spec import WorkerSpec

ROOT = Path(__file__).resolve().parent.parent
MODEL = "smollm2-135m-instruct"
MODEL_CACHE = ROOT / "build" / "model-cache"
"""The default model, kept between runs of the tests (a new data folder would fetch it again)."""
KERNELS_CACHE = ROOT / "build" / "kernels"
"""Compiled once for all data folders that tests make."""
READY_LINE = "Galley is ready: "
START_TIMEOUT_S = 240
STOP_TIMEOUT_S = 20


def free_port() -> int:
    """Below the ports of outgoing connections: one of those could take it before its server does."""
    for port in random.SystemRandom().sample(range(10_000, 20_000), 100):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise RuntimeError("no port is free")


def clean_environment(**extra: str) -> dict[str, str]:
    """The caller's environment without what the tests' own Django was told."""
    ours = ("DATABASE_URL", "REDIS_URL", "PORT", "DJANGO_SETTINGS_MODULE", "PYTEST_CURRENT_TEST")
    kept = {name: value for name, value in os.environ.items() if name not in ours and not name.startswith("GALLEY_")}
    return {**kept, **extra}


@dataclass
class System:
    home: Path
    port: int
    extra: dict[str, str] = field(default_factory=dict)
    launcher: subprocess.Popen[str] | None = None

    @classmethod
    def new(cls, **extra: str) -> System:
        """A fresh data folder that already holds the model, when an earlier run fetched it."""
        home = Path(tempfile.mkdtemp(prefix="galley-e2e-")).resolve()
        cached = MODEL_CACHE / MODEL
        if cached.exists():
            shutil.copytree(cached, home / "models" / MODEL, copy_function=_link_or_copy)
        return cls(home=home, port=free_port(), extra=extra)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def environment(self) -> dict[str, str]:
        return clean_environment(
            GALLEY_HOME=str(self.home), GALLEY_KERNELS_CACHE=str(KERNELS_CACHE), PORT=str(self.port), **self.extra
        )

    @property
    def first_run(self) -> dict[str, str]:
        content: dict[str, str] = json.loads((self.home / "first-run.json").read_text())
        return content

    @property
    def output(self) -> str:
        """What the launchers of this system printed so far."""
        return self._output.read_text()

    @property
    def _output(self) -> Path:
        return self.home.with_name(f"{self.home.name}.out")

    def start(self, wait: bool = True) -> float:
        """`make up`; seconds until it was ready. Raises RuntimeError with its output where it ends before."""
        started = time.monotonic()
        before = self._output.read_text().count(READY_LINE) if self._output.exists() else 0
        with self._output.open("a") as out:
            self.launcher = subprocess.Popen(
                [sys.executable, "-m", "controlplane.launcher", "up"],
                cwd=ROOT,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )
        while wait and self.output.count(READY_LINE) == before:
            if self.launcher.poll() is not None:
                raise RuntimeError(f"the launcher ended with {self.launcher.returncode}:\n{self.output}")
            if time.monotonic() - started > START_TIMEOUT_S:
                raise RuntimeError(f"not ready after {START_TIMEOUT_S} s:\n{self.output}\n{self.logs()}")
            time.sleep(0.1)
        if wait:
            self._keep_model()
        return time.monotonic() - started

    def interrupt(self) -> int:
        """Ctrl-C; the launcher's exit status."""
        assert self.launcher is not None
        self.launcher.send_signal(signal.SIGINT)
        return self.launcher.wait(STOP_TIMEOUT_S)

    def down(self) -> subprocess.CompletedProcess[str]:
        """`make down`, from another terminal."""
        result = subprocess.run(
            [sys.executable, "-m", "controlplane.launcher", "down"],
            cwd=ROOT,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=STOP_TIMEOUT_S + 10,
            check=False,
        )
        if self.launcher is not None and result.returncode == 0:
            self.launcher.wait(5)
        return result

    def destroy(self) -> None:
        """Stop it and remove its data folder."""
        self.down()
        shutil.rmtree(self.home, ignore_errors=True)
        self._output.unlink(missing_ok=True)

    def processes(self) -> list[psutil.Process]:
        """Every process of this system: those that carry its data folder in their environment or command line."""
        found = []
        for process in psutil.process_iter():
            try:
                environment = process.environ().get("GALLEY_HOME") if process.pid != os.getpid() else None
                mine = environment == str(self.home) or str(self.home) in " ".join(process.cmdline())
                if mine and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
            except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
                continue
        return found

    def engines(self) -> dict[Role, psutil.Process]:
        """Worker processes by role, from the specification that each was started with."""
        found = {}
        for process in self.processes():
            try:
                arguments = process.cmdline()
                specification = msgspec.json.decode(Path(arguments[-1]).read_bytes(), type=WorkerSpec)
            except (psutil.NoSuchProcess, IndexError, OSError, msgspec.DecodeError):
                continue
            if "workers.serve" in arguments:
                found[specification.role] = process
        return found

    def valkey(self) -> redis.Redis:
        endpoint = json.loads((self.home / "valkey" / "endpoint.json").read_text())
        return redis.Redis(port=endpoint["port"], password=endpoint["password"])

    def agent(self) -> AgentHeartbeat | None:
        """The node agent's latest word on itself."""
        with self.valkey() as client:
            raw = client.get(heartbeat_key("local"))
        return msgspec.msgpack.decode(raw, type=AgentHeartbeat) if isinstance(raw, bytes) else None

    def snapshots(self, timeout_s: float = 15.0) -> dict[Role, WorkerSnapshot]:
        """The next snapshot that each engine publishes (one a second), by role."""
        found: dict[Role, WorkerSnapshot] = {}
        deadline = time.monotonic() + timeout_s
        with self.valkey() as client, client.pubsub() as channel:
            channel.subscribe(snapshots.CHANNEL)
            while len(found) < 2 and time.monotonic() < deadline:
                message = channel.get_message(ignore_subscribe_messages=True, timeout=0.5)
                if message is not None:
                    snapshot = snapshots.decode(message["data"])
                    if isinstance(snapshot, WorkerSnapshot):
                        found[snapshot.role] = snapshot
        return found

    def recorded(self) -> dict[str, int]:
        """Process ids of what the launcher supervises, by name."""
        records: dict[str, dict[str, Any]] = json.loads((self.home / "state" / "processes.json").read_text())
        return {name: int(record["pid"]) for name, record in records.items()}

    def client(self, **options: Any) -> OpenAI:
        """The official SDK, without retries: a test wants to see each failure."""
        return OpenAI(base_url=f"{self.url}/v1", api_key=self.first_run["api_key"], max_retries=0, **options)

    def get(self, path: str, **options: Any) -> httpx.Response:
        headers = {"Authorization": f"Bearer {self.first_run['api_key']}"}
        return httpx.get(f"{self.url}{path}", headers=headers, timeout=30, **options)

    def logs(self, lines: int = 30) -> str:
        """The last lines of every log, for a failure's message."""
        parts = []
        for path in sorted((self.home / "logs").rglob("*.log")):
            tail = path.read_text(errors="replace").splitlines()[-lines:]
            parts.append(f"--- {path.relative_to(self.home)}\n" + "\n".join(tail))
        return "\n".join(parts)

    def _keep_model(self) -> None:
        source, cached = self.home / "models" / MODEL, MODEL_CACHE / MODEL
        if source.exists() and not cached.exists():
            MODEL_CACHE.mkdir(parents=True, exist_ok=True)
            temporary = Path(tempfile.mkdtemp(dir=MODEL_CACHE))
            shutil.copytree(source, temporary / MODEL)
            (temporary / MODEL).rename(cached)
            temporary.rmdir()


def _link_or_copy(source: str, target: str) -> None:
    """A hard link where both lie on one disk: model files are never written to."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
