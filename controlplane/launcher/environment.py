"""The set-up before anything of ours runs: `.venv/`, the locked packages, the built front end. Standard library only.

Each part leaves a stamp (a hash of what it was made from), so that the next run only compares hashes.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from controlplane.launcher import frontend, packages
from controlplane.launcher.errors import LaunchError, from_os_error
from controlplane.launcher.progress import Progress

ROOT = Path(__file__).resolve().parents[2]
VENV = ROOT / ".venv"
NEEDED_BYTES = 2 * 1024**3
"""Free space asked for before packages are installed; CUDA builds need several times as much, and pip says so then."""


def main(arguments: list[str]) -> int:
    """Set up, then become `.venv/bin/python ARGUMENTS`. `--dev` adds the tools, `--no-frontend` leaves pages out."""
    develop = _take(arguments, "--dev")
    pages = not _take(arguments, "--no-frontend")
    started = time.monotonic()
    try:
        set_up(develop=develop, pages=pages)
    except LaunchError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"error: {from_os_error(error)}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nstopped; the next run goes on from here", file=sys.stderr)
        return 130
    if arguments:
        python = str(VENV / "bin" / "python")
        os.chdir(ROOT)
        os.environ["SETUP_SECONDS"] = f"{time.monotonic() - started:.1f}"  # `make test` reports it
        sys.stdout.flush()
        os.execv(python, [python, *arguments])
    return 0


def set_up(*, develop: bool, pages: bool) -> None:
    """Everything that `make up` and `make test` share. Raises LaunchError."""
    lock = ROOT / ("requirements-dev.lock" if develop else "requirements.lock")
    os.umask(0o022)  # the database's system user reads binaries in .venv
    with _alone():
        want_packages = not packages.is_current(VENV, lock)
        want_pages = pages and not frontend.is_current(ROOT)
        if not want_packages and not want_pages:
            return
        progress = Progress()
        if want_packages:
            require_space(VENV, NEEDED_BYTES)
        node = frontend.system_node() if want_pages else None
        jobs: list[Callable[[], None]] = []
        if want_packages:
            jobs.append(lambda: _packages(progress, lock))
        if node is not None:  # needs nothing of ours: runs beside pip
            jobs.append(lambda: frontend.build(ROOT, node, progress))
        _together(jobs)
        if want_pages and node is None:
            frontend.build(ROOT, frontend.packaged_node(VENV, progress), progress)


def require_space(folder: Path, needed: int) -> None:
    """Raises LaunchError where the disk that `folder` will lie on has less than `needed` bytes free."""
    existing = folder
    while not existing.exists():
        existing = existing.parent
    free = shutil.disk_usage(existing).free
    if free < needed:
        raise LaunchError(
            f"not enough disk space for {folder}: {free / 1024**3:.1f} GiB free, {needed / 1024**3:.1f} GiB needed",
            "Free some space there, or set GALLEY_HOME to a folder on another disk.",
        )


def _packages(progress: Progress, lock: Path) -> None:
    if not packages.venv_works(VENV):
        with progress.step("Python environment (.venv)"):
            packages.create_venv(VENV)
    with progress.step(f"Python packages ({lock.name})") as step:
        packages.install(VENV, lock, step)


def _together(jobs: list[Callable[[], None]]) -> None:
    """Run jobs side by side; the first failure is raised once all have ended."""
    failures: list[LaunchError | OSError] = []

    def run(job: Callable[[], None]) -> None:
        try:
            job()
        except (LaunchError, OSError) as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(job,), daemon=True) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


@contextmanager
def _alone() -> Iterator[None]:
    """One set-up of this checkout at a time; a second one waits and then finds everything done."""
    folder = os.open(ROOT, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("waiting for another set-up of this checkout", flush=True)
            fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


def _take(arguments: list[str], flag: str) -> bool:
    """Remove a leading-options flag; arguments after the first other word belong to the command."""
    for index, argument in enumerate(arguments):
        if not argument.startswith("--"):
            return False
        if argument == flag:
            del arguments[index]
            return True
    return False
