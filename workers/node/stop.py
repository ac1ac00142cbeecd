"""`python -m workers.node.stop`: end every worker process of this data folder, without agent or database (last resort).

An agent that runs would start them again: stop it first. Exit status 0 when nothing is left.
"""

from __future__ import annotations

import argparse
import signal
import sys

from workers.home import Home
from workers.node import processes


def stop(home: Home, *, drain_s: float) -> tuple[int, int]:
    """SIGTERM, once more after `drain_s`, then SIGKILL. (processes found, processes left)."""
    found = [record for _, record in processes.running(home)]
    left = found
    for number, wait_s in ((signal.SIGTERM, drain_s), (signal.SIGTERM, 2.0), (signal.SIGKILL, 2.0)):
        for record in left:
            processes.send(record, number)
        left = processes.wait_gone(left, wait_s)
    return len(found), len(left)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m workers.node.stop", description=__doc__)
    parser.add_argument("--drain", type=float, default=3.0, metavar="SECONDS", help="time for running requests")
    options = parser.parse_args()
    home = Home.from_env()
    found, left = stop(home, drain_s=options.drain)
    sys.stdout.write(f"stopped {found - left} of {found} worker processes under {home.root}\n")
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main())
