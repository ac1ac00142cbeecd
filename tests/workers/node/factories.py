"""A supervisor over real processes of the fake worker, driven turn by turn."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tests.workers.conftest import NOWHERE, fake_manifest
from workers.home import Home
from workers.manifest import write_manifest
from workers.node import processes
from workers.node.endpoints import NodeNetwork
from workers.node.records import Records, Wanted, WantedState
from workers.node.reports import Report, State
from workers.node.supervisor import Supervisor
from workers.node.timing import Timing
from workers.protocol import Role
from workers.spec import EngineSettings

FAKE_WORKER = (sys.executable, "-m", "tests.workers.fake_worker")
QUICK = Timing(turn_s=0.05, silent_s=2.5, hung_s=8.0, back_off_s=0.3, stop_drain_s=0.5, drain_grace_s=0.5)
"""A worker says how it is once a second: `silent_s` must be well above that, and `hung_s` above what a busy machine
keeps a healthy process waiting."""


def wanted(name: str, home: Home, *, model: str = "fake", role: Role = Role.BOTH, drain_s: float = 10.0) -> Wanted:
    folder = home.models / "fake"
    if not folder.is_dir():
        folder.mkdir(parents=True)
        write_manifest(folder, fake_manifest())
    return Wanted(
        name=name, role=role, deployment="d", revision="r1", model=model, model_path=str(folder),
        engine=EngineSettings(), device="cpu", drain_deadline_s=drain_s,
    )  # fmt: skip


def free_ports(count: int) -> list[int]:
    """Next to each other."""
    for first in range(20_000, 60_000, 50):
        try:
            held = [socket.create_server(("127.0.0.1", first + i)) for i in range(count)]
        except OSError:
            continue
        for one in held:
            one.close()
        return [first + i for i in range(count)]
    raise AssertionError("no ports are free")


@dataclass
class Stage:
    """One agent's life: `supervisor` and what it said."""

    home: Home
    timing: Timing = QUICK
    command: tuple[str, ...] = FAKE_WORKER
    network: NodeNetwork = field(default_factory=NodeNetwork)
    said: dict[str, Report] = field(default_factory=dict)
    history: list[Report] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.supervisor = Supervisor(
            "test", Records(self.home), NOWHERE, self._note, self.removed.append, self.timing, self.command,
            network=self.network,
        )  # fmt: skip

    def _note(self, report: Report) -> None:
        self.said[report.worker] = report
        self.history.append(report)

    async def until(
        self, condition: Callable[[], object], *workers: Wanted, stopping: bool = False, timeout_s: float = 60.0
    ) -> None:
        """Turn until `condition`."""
        async with asyncio.timeout(timeout_s):
            while not condition():
                self.supervisor.turn(WantedState(workers=workers, stopping=stopping))
                await asyncio.sleep(self.timing.turn_s)

    async def ready(self, *workers: Wanted) -> None:
        await self.until(lambda: all(self.state(w.name) is State.READY for w in workers), *workers)

    async def emptied(self, *, stopping: bool = True) -> None:
        await self.until(lambda: not self.supervisor.workers, stopping=stopping)

    def state(self, name: str) -> State | None:
        return self.said[name].state if name in self.said else None

    def pid(self, name: str) -> int:
        pid = self.said[name].pid
        assert pid is not None
        return pid

    def again(self) -> Stage:
        """The agent is restarted: a new supervisor over the same folder."""
        self.supervisor.close()
        other = Stage(self.home, self.timing, self.command)
        other.supervisor.adopt()
        return other


def kill_all(home: Path) -> None:
    from workers.node.stop import stop

    stop(Home(home), drain_s=0.0)


def running_pids(home: Home) -> list[int]:
    return [record.pid for _, record in processes.running(home)]
