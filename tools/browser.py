"""Chromium for the browser tests: found on the system, or installed from Debian's packages where that is possible."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
LOG = Path(__file__).resolve().parent.parent / "build" / "chromium.log"


def find_chromium() -> str | None:
    """Path of an installed browser."""
    return next((path for name in NAMES if (path := shutil.which(name)) is not None), None)


def ensure_chromium() -> str | None:
    """Install it when it is missing, we are root, and there is apt-get. None where that did not work."""
    found = find_chromium()
    if found is not None or os.geteuid() != 0 or shutil.which("apt-get") is None:
        return found
    print("installing chromium for the browser tests (apt-get)", flush=True)
    LOG.parent.mkdir(exist_ok=True)
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    with LOG.open("w") as log:
        for command in (
            ["apt-get", "update"],
            ["apt-get", "install", "--yes", "--no-install-recommends", "chromium", "fonts-liberation"],
        ):
            status = subprocess.run(
                command, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, check=False
            ).returncode
            if status != 0:
                print(f"`{' '.join(command)}` ended with {status}; see {LOG}", flush=True)
    return find_chromium()
