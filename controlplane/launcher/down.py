"""`make down`: stops the launcher of this data folder and whatever is left of it, from any terminal."""

from __future__ import annotations

import signal
import time

from controlplane.config import home
from controlplane.launcher.errors import LaunchError
from controlplane.launcher.instance import Instance
from controlplane.launcher.process import send, wait_gone
from controlplane.launcher.progress import Progress
from controlplane.launcher.stopping import DEADLINE_S, stop_leftovers

_LEFTOVERS_S = 2.0
"""Kept for what a launcher that does not end in its own time leaves behind."""


def run() -> int:
    """Exit status 0 also when nothing ran. Raises LaunchError where another launcher started meanwhile."""
    instance = Instance(home())
    if not instance.home.root.exists():
        print(f"nothing runs on {instance.home.root}")
        return 0
    until = time.monotonic() + DEADLINE_S
    owner = instance.owner()
    progress = Progress()
    if owner is not None:
        with progress.step(f"Stopping Galley on {instance.home.root}"):
            send(owner, signal.SIGTERM)
            for record in wait_gone([owner], DEADLINE_S - _LEFTOVERS_S):
                send(record, signal.SIGKILL)
            wait_gone([owner], 0.5)
    try:
        instance.take()
    except LaunchError:
        if owner is not None:
            raise
        raise LaunchError(
            f"Galley is being started or stopped on {instance.home.root} right now",
            "Run `make down` again in a moment.",
        ) from None
    stopped = stop_leftovers(instance, engines=True, until=until)
    instance.release()
    if stopped:
        print(f"stopped {stopped} process{'es' if stopped > 1 else ''} that an earlier run had left behind")
    print("Galley is stopped" if owner is not None or stopped else f"nothing runs on {instance.home.root}")
    return 0
