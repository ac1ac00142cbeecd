"""The services of the installation that runs on a data folder: written by the launcher, read by commands beside it."""

from __future__ import annotations

import json
import os
from pathlib import Path

from workers.home import Home

_NAMES = ("DATABASE_URL", "REDIS_URL")


def _file(home: Home) -> Path:
    return home.state / "services.json"


def publish_services(home: Home, *, database_url: str, redis_url: str) -> None:
    """Mode 0600: the URLs hold passwords."""
    path = _file(home)
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        json.dump(dict(zip(_NAMES, (database_url, redis_url), strict=True)), file)
    temporary.replace(path)


def withdraw_services(home: Home) -> None:
    _file(home).unlink(missing_ok=True)


def use_running_services() -> None:
    """For a command typed next to `make up`: the running services, unless the environment names others."""
    try:
        known = json.loads(_file(Home.from_env()).read_text())
    except (FileNotFoundError, PermissionError, ValueError):
        return
    for name in _NAMES:
        if not os.environ.get(name) and known.get(name):
            os.environ[name] = known[name]
