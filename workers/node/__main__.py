"""`python -m workers.node`: this process becomes the Celery worker of the host's queue, with the agent in it."""

from __future__ import annotations

import os
import sys

from controlplane.celery import node_queue
from controlplane.config import settings


def celery_args() -> list[str]:
    """Command line of the agent. Threads: its tasks only nudge."""
    node = settings().node
    return [
        sys.executable, "-m", "celery", "-A", "workers.node.app", "worker",
        "-Q", node_queue(node), "-n", f"node-{node}@%h", "--pool", "threads", "-c", "2",
        "--without-gossip", "--without-mingle", "-l", settings().log_level,
    ]  # fmt: skip


if __name__ == "__main__":
    arguments = celery_args()
    os.execv(arguments[0], arguments)  # noqa: S606 - one process: signals reach Celery itself
