"""Where everything lies under `GALLEY_HOME` (torch-free, no Django): one class, used by every process."""

from __future__ import annotations

import hashlib
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

SOCKET_PATH_LIMIT = 100
"""Longest path we bind a unix socket to, in bytes (the kernel's limit is 107 without the final NUL)."""


@dataclass(frozen=True, slots=True)
class Home:
    """The data folder. Nothing here creates anything: callers create what they own, private (0700)."""

    root: Path

    @classmethod
    def from_env(cls) -> Home:
        """`GALLEY_HOME`, by default `var/` below the working directory, made absolute."""
        return cls(Path(os.environ.get("GALLEY_HOME", "var")).expanduser().resolve())

    @property
    def first_run(self) -> Path:
        return self.root / "first-run.json"

    @property
    def secret_key(self) -> Path:
        return self.root / "secret-key"

    @property
    def postgres(self) -> Path:
        return self.root / "postgres"

    @property
    def valkey(self) -> Path:
        return self.root / "valkey"

    @property
    def models(self) -> Path:
        return self.root / "models"

    @property
    def kvstore(self) -> Path:
        """Root of the KV store, where it is on this machine's disk."""
        return self.root / "kvstore"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def journal(self) -> Path:
        return self.root / "journal"

    @property
    def static(self) -> Path:
        return self.root / "static"

    @property
    def state(self) -> Path:
        """Process ids, worker specifications, epochs: what must survive an agent's restart."""
        return self.root / "state"

    @property
    def sockets(self) -> Path:
        """Folder of unix sockets: `state/sockets`, or a private short path where that is too long to bind."""
        wanted = self.state / "sockets"
        if len(os.fsencode(wanted)) + 40 <= SOCKET_PATH_LIMIT:
            return wanted
        digest = hashlib.sha256(os.fsencode(self.root)).hexdigest()[:12]
        return Path(tempfile.gettempdir()) / f"galley-{os.getuid()}-{digest}"

    def worker_state(self, worker: str) -> Path:
        return self.state / "workers" / worker

    def worker_log(self, worker: str) -> Path:
        return self.logs / "workers" / f"{worker}.log"
