"""Compiling the C++ kernels for the machine at hand, once: a shared library in a cache folder, loaded through ctypes.

The sources need nothing but a compiler: no headers of torch or Python, so a build takes seconds. The library's name is
a hash of sources, compiler, flags and processor; another process that builds at the same time is waited for, up to a
deadline.
"""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

logger = logging.getLogger(__name__)

KERNELS = Path(__file__).resolve().parent.parent
SOURCES = tuple(sorted(KERNELS.glob("*/native.cpp")))
HEADERS = (KERNELS / "native" / "simd.h",)
FLAGS = ("-O3", "-march=native", "-std=c++17", "-fopenmp", "-fPIC", "-ffp-contract=fast", "-fno-math-errno")
COMPILERS = ("g++", "clang++", "c++")
BUILD_DEADLINE_S = 120.0


class BuildError(Exception):
    """No library: no compiler, it failed, or the folder cannot be used. The message says which."""


def cache_folder() -> Path:
    """`GALLEY_KERNELS_CACHE`; else `cache/kernels` in the data folder (`GALLEY_HOME`, as everywhere); else the user's
    cache.
    """
    if chosen := os.environ.get("GALLEY_KERNELS_CACHE"):
        return Path(chosen).expanduser().resolve()
    home = os.environ.get("GALLEY_HOME")
    if home:
        return Path(home).expanduser().resolve() / "cache" / "kernels"
    return Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "galley" / "kernels"


def load(folder: Path | None = None) -> ctypes.CDLL:
    """The library, compiled first where it is not there yet. Raises BuildError."""
    compiler = _compiler()
    folder = folder or cache_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        owner = folder.stat()
        if owner.st_uid != os.getuid() or owner.st_mode & 0o022:
            raise BuildError(f"{folder} can be written by others; code is not loaded from there")
        library = folder / f"galley-{_digest(compiler)}.so"
        if not library.is_file():
            _build(compiler, library)
        return ctypes.CDLL(str(library))
    except OSError as error:
        raise BuildError(f"the kernels' library cannot be made or loaded in {folder}: {error}") from error


def _compiler() -> str:
    wanted = os.environ.get("CXX")
    for name in (wanted,) if wanted else COMPILERS:
        if path := shutil.which(name):
            return path
    raise BuildError(f"no C++ compiler ({wanted or ', '.join(COMPILERS)}) is installed")


def compiler_version() -> str:
    """The first line that the compiler says of itself. Raises BuildError."""
    return _version(_compiler()).partition("\n")[0]


def _version(compiler: str) -> str:
    return _run([compiler, "--version"], 20.0)


def _digest(compiler: str) -> str:
    digest = hashlib.sha256(repr((_version(compiler), FLAGS, platform.machine(), processor())).encode())
    for source in (*SOURCES, *HEADERS):
        digest.update(source.read_bytes())
    return digest.hexdigest()[:24]


def processor() -> str:
    """What the processor can do: a data folder may be shared by machines that differ."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    wanted = ("flags", "Features", "model name", "cpu family", "model")
    return "\n".join(sorted({line for line in lines if line.split("\t", 1)[0].strip() in wanted}))


def _build(compiler: str, library: Path) -> None:
    began = time.monotonic()
    with library.with_suffix(".lock").open("w") as lock:
        _acquire(lock.fileno(), began + BUILD_DEADLINE_S)
        if library.is_file():
            return
        with tempfile.TemporaryDirectory(prefix="build-", dir=library.parent) as scratch:
            _compile(compiler, Path(scratch) / "library.so")
            (Path(scratch) / "library.so").rename(library)
    seconds = round(time.monotonic() - began, 1)
    logger.info("kernels compiled", extra={"fields": {"compiler": compiler, "seconds": seconds}})


def _compile(compiler: str, library: Path) -> None:
    """Each source on a processor of its own, then one link."""
    objects = [library.with_name(f"{source.parent.name}.o") for source in SOURCES]
    with ThreadPoolExecutor(max_workers=os.cpu_count() or 1) as pool:
        commands = ([compiler, *FLAGS, "-c", str(s), "-o", str(o)] for s, o in zip(SOURCES, objects, strict=True))
        for done in [pool.submit(_run, command, BUILD_DEADLINE_S) for command in commands]:
            done.result()
    _run([compiler, *FLAGS, "-shared", *map(str, objects), "-o", str(library)], BUILD_DEADLINE_S)


def _acquire(descriptor: int, deadline: float) -> None:
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise BuildError("another process has been compiling the kernels for too long") from None
            time.sleep(0.1)


def _run(command: list[str], deadline_s: float) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=deadline_s, check=True)
    except subprocess.TimeoutExpired:
        raise BuildError(f"{command[0]} took longer than {deadline_s:.0f} s") from None
    except subprocess.CalledProcessError as error:
        raise BuildError(f"{command[0]} failed: {error.stderr[-2000:]}") from error
    return done.stdout
