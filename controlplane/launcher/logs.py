"""Log files that stay bounded: every process appends to its own, the launcher turns over those that grew too long.

Those of the workers, a folder below, are the node agent's (`workers.node.processes`): it has them on every host.
"""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path

MAX_BYTES = 10 * 1024**2
KEPT = 2
"""Older copies per file: `NAME.log.1` is the newest of them."""


def rotate(folder: Path, max_bytes: int = MAX_BYTES, kept: int = KEPT) -> list[Path]:
    """Turn over every `*.log` in `folder` that is longer than `max_bytes`; those that were.

    Copies and truncates, since the writers keep their files open (in append mode, so they go on at the new end). What
    is written between the copy and the cut is lost: a few lines at most, once per `max_bytes`.
    """
    turned = []
    for path in folder.glob("*.log"):
        with contextlib.suppress(FileNotFoundError):
            if path.stat().st_size <= max_bytes:
                continue
            for number in range(kept, 1, -1):
                older = path.with_name(f"{path.name}.{number - 1}")
                if older.exists():
                    older.replace(path.with_name(f"{path.name}.{number}"))
            shutil.copyfile(path, path.with_name(f"{path.name}.1"))
            with path.open("r+b") as file:
                file.truncate(0)
            turned.append(path)
    return turned


def last_line(path: Path) -> str:
    """The last line that says something, for an error message."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - 4096))
            lines = file.read().decode(errors="replace").splitlines()
    except FileNotFoundError:
        return ""
    return next((line.strip() for line in reversed(lines) if line.strip()), "")
