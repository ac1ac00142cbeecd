"""Fetch one wheel through pip, so that the user's index, proxy and certificates are the ones pip uses anyway."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
from collections import deque
from importlib.metadata import version
from pathlib import Path

from workers.models.store import Progress, StoreError

_RAW_PROGRESS = re.compile(r"Progress (\d+) of (\d+)")
_NO_NETWORK = (
    "NewConnectionError",
    "NameResolutionError",
    "Temporary failure in name resolution",
    "ConnectTimeout",
    "ReadTimeout",
    "ProxyError",
    "SSLError",
)
_CHUNK = 4 * 2**20


def _progress_bar() -> str:
    """`raw` prints bytes line by line; the pip that Python 3.11 brings along (before 24.1) does not know it."""
    major, minor, *_ = version("pip").split(".")
    return "raw" if (int(major), int(minor)) >= (24, 1) else "off"


def download_wheel(requirement: str, sha256: str, into: Path, progress: Progress | None) -> Path:
    """The wheel's path below `into`, its SHA-256 verified. Raises StoreError."""
    scratch = into / "tmp"
    scratch.mkdir()
    command = [
        *(sys.executable, "-m", "pip", "download", requirement, "--no-deps", "--only-binary", ":all:"),
        *("--dest", str(into), "--progress-bar", _progress_bar(), "--no-input", "--disable-pip-version-check"),
        *("--retries", "2", "--timeout", "20"),
    ]
    tail: deque[str] = deque(maxlen=12)
    # pip unpacks next to the destination: one disk to be full, one folder to clean up.
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "TMPDIR": str(scratch)},
    ) as pip:
        assert pip.stdout is not None
        try:
            for line in pip.stdout:
                if match := _RAW_PROGRESS.match(line):
                    if progress is not None:
                        progress("downloading", int(match[1]), int(match[2]))
                else:
                    tail.append(line.rstrip())
        except BaseException:
            pip.terminate()
            raise
    if pip.returncode != 0:
        raise StoreError(_explain(requirement, "\n".join(tail)))
    wheels = list(into.glob("*.whl"))
    if len(wheels) != 1:
        raise StoreError(f"pip fetched {len(wheels)} wheels for {requirement}, expected one")
    found = file_sha256(wheels[0])
    if found != sha256:
        raise StoreError(
            f"{wheels[0].name} has SHA-256 {found}, expected {sha256}: the package index served something else; "
            "nothing was installed"
        )
    return wheels[0]


def _explain(requirement: str, output: str) -> str:
    if "No module named pip" in output:
        return f"{requirement} is fetched with pip, which {sys.executable} lacks: run `{sys.executable} -m ensurepip`"
    if any(sign in output for sign in _NO_NETWORK):
        return (
            f"no connection to the package index while fetching {requirement}; check the network or set "
            f"PIP_INDEX_URL to a mirror, then try again. pip said:\n{output}"
        )
    if "No space left on device" in output:
        return f"the disk filled up while fetching {requirement}"
    if "No matching distribution" in output:
        return f"the package index does not have {requirement}. pip said:\n{output}"
    return f"pip could not fetch {requirement}:\n{output}"


def file_sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def copy_with_progress(source: Path, target: Path, what: str, progress: Progress | None) -> None:
    """Copy a large file in chunks; `progress` sees the bytes of this file."""
    total = source.stat().st_size
    done = 0
    with source.open("rb") as reader, target.open("xb") as writer:
        while chunk := reader.read(_CHUNK):
            writer.write(chunk)
            done += len(chunk)
            if progress is not None:
                progress(what, done, total)
