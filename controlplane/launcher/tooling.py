"""Running pip and npm: output into a log, progress from it, and failures told in words. Standard library only."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

from controlplane.launcher.errors import LaunchError

_NO_NETWORK = re.compile(
    r"NewConnectionError|NameResolutionError|Temporary failure in name resolution|Name or service not known"
    r"|Network is unreachable|Connection refused|Failed to establish a new connection|ConnectTimeout|ProxyError"
    r"|Max retries exceeded|Connection to \S+ timed out"
    r"|ENOTFOUND|EAI_AGAIN|ECONNREFUSED|ETIMEDOUT|ENETUNREACH|ERR_SOCKET_TIMEOUT"
)
_NO_SPACE = re.compile(r"No space left on device|ENOSPC|Errno 28")


def pip(venv: Path) -> list[str]:
    """The environment's pip, never asking questions."""
    return [str(venv / "bin" / "python"), "-m", "pip", "--no-input", "--disable-pip-version-check"]


def run_logged(
    argv: list[str], *, log: Path, cwd: Path, each_line: Callable[[str], None], env: Mapping[str, str] | None = None
) -> tuple[int, list[str]]:
    """Run a tool, its output into `log` and line by line to `each_line`: the exit status and the last lines."""
    tail: list[str] = []
    with log.open("w", errors="replace") as file:
        process = subprocess.Popen(
            argv,
            cwd=cwd,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        assert process.stdout is not None
        for line in process.stdout:
            file.write(line)
            text = line.rstrip()
            if text:
                tail = [*tail[-59:], text]
                each_line(text)
        return process.wait(), tail


def failure(what: str, tail: list[str], log: Path) -> LaunchError:
    """The error for a tool that failed: no network and no space by name, else its own last words."""
    text = "\n".join(tail)
    if _NO_SPACE.search(text):
        return LaunchError(f"{what}: no space left on the disk", f"Free some space, then run it again. Details: {log}")
    if _NO_NETWORK.search(text):
        return LaunchError(
            f"{what}: the package index cannot be reached",
            f"Check the network, or the proxy settings of pip and npm, then run it again. Details: {log}",
        )
    own = [line.partition(": ")[2] for line in tail if line.startswith("CommandError: ")]
    errors = own or [line for line in tail if re.match(r"(npm )?error", line, re.IGNORECASE)]
    last = (errors or tail or ["it printed nothing"])[-1].removeprefix("error: ")
    return LaunchError(f"{what}: {last.strip()}", f"Details: {log}")
