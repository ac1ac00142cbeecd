"""What the agent keeps on disk, so that a restart of it (or of PostgreSQL) stops nothing.

`state/wanted.json` is the last wanted state; `state/workers/<name>/` holds `epoch` (the last one given), `spec.json`
(what the process was started with) and `process.json` (which process it is). Every file is replaced by rename.
"""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path
from typing import TypeVar

import msgspec

from workers.home import Home
from workers.protocol import Role
from workers.spec import EngineSettings, WorkerSpec

logger = logging.getLogger(__name__)
S = TypeVar("S", bound=msgspec.Struct)


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """One worker that shall run here (`controlplane.fleet.selectors.WantedWorker`, and where its model lies)."""

    name: str
    role: Role
    deployment: str
    revision: str
    model: str
    model_path: str
    engine: EngineSettings
    device: str
    drain_deadline_s: float


class WantedState(msgspec.Struct, frozen=True, kw_only=True):
    """`stopping`: somebody asked for the node to be emptied (`make down`), which is not the same as nothing to run."""

    workers: tuple[Wanted, ...] = ()
    stopping: bool = False


class ProcessRecord(msgspec.Struct, kw_only=True):
    """The process of a worker. A pid alone may by now belong to somebody else, hence `create_time` (unix seconds)."""

    pid: int
    create_time: float
    epoch: int
    endpoint: str
    """Where gateways and decode workers connect."""
    wanted: Wanted
    started_at: float
    """Unix seconds."""
    restarts: int = 0
    """Starts of this worker on this node after the first."""
    local: str | None = None
    """Its unix socket beside a TCP endpoint: where the agent connects."""
    draining_since: float | None = None
    """Unix seconds of the SIGTERM: a second one would cut its requests."""


class Records:
    def __init__(self, home: Home) -> None:
        self.home = home

    # --- wanted ----------------------------------------------------------------------------------------------

    def read_wanted(self) -> WantedState:
        return self._read(self.home.state / "wanted.json", WantedState) or WantedState()

    def write_wanted(self, wanted: WantedState) -> None:
        _write(self.home.state / "wanted.json", msgspec.json.encode(wanted))

    # --- one worker ------------------------------------------------------------------------------------------

    def names(self) -> list[str]:
        folder = self.home.state / "workers"
        return sorted(path.name for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []

    def spec_path(self, worker: str) -> Path:
        return self.home.worker_state(worker) / "spec.json"

    def read_spec(self, worker: str) -> WorkerSpec | None:
        return self._read(self.spec_path(worker), WorkerSpec)

    def write_spec(self, spec: WorkerSpec) -> Path:
        path = self.spec_path(spec.address.worker)
        _write(path, msgspec.json.encode(spec))
        return path

    def read_process(self, worker: str) -> ProcessRecord | None:
        return self._read(self.home.worker_state(worker) / "process.json", ProcessRecord)

    def write_process(self, worker: str, record: ProcessRecord) -> None:
        _write(self.home.worker_state(worker) / "process.json", msgspec.json.encode(record))

    def forget_process(self, worker: str) -> None:
        (self.home.worker_state(worker) / "process.json").unlink(missing_ok=True)

    def last_epoch(self, worker: str) -> int:
        try:
            return int((self.home.worker_state(worker) / "epoch").read_text())
        except FileNotFoundError:
            return 0
        except ValueError:
            logger.warning("the epoch file of %s is damaged; the clock is ahead of it", worker)
            return 0

    def next_epoch(self, worker: str) -> int:
        """Larger than every one before, also where the file or the clock was set back."""
        epoch = max(self.last_epoch(worker) + 1, int(time.time()))
        _write(self.home.worker_state(worker) / "epoch", str(epoch).encode())
        return epoch

    def _read(self, path: Path, kind: type[S]) -> S | None:
        try:
            return msgspec.json.decode(path.read_bytes(), type=kind)
        except FileNotFoundError:
            return None
        except msgspec.DecodeError as error:
            logger.error("%s is damaged and ignored: %s", path, error)
            return None


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    temporary = path.with_name(f".{path.name}.tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
