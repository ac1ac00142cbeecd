"""What the gateway costs: stub workers behind it, real authentication, limits and ledger, 50 tokens in an event each.

The peer is LiteLLM's proxy in front of an equal stub in OpenAI's shape, in the same run: `--litellm` names the Python
of a virtual environment with `litellm[proxy]==1.106.4` in it; without one that row is left out, with the reason.
Clients and stubs run in this process, the gateway in its own; the first row is what the clients reach with nothing in
between.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil

LITELLM = "1.106.4"
KEY = "sk-benchmark"


@dataclass
class Row:
    name: str
    streams_s: float
    ttft_ms: tuple[float, float]
    """p50 and p99 at the open loop's rate."""
    cpu_us: float
    """Of the process in between, for each event."""
    failed: int


class Cpu:
    """Seconds that a process and its children computed since this was made."""

    def __init__(self, pid: int) -> None:
        process = psutil.Process(pid)
        self._processes = [process, *process.children(recursive=True)]
        self._before = self._now()

    def _now(self) -> float:
        return sum(sum(process.cpu_times()[:2]) for process in self._processes)

    @property
    def seconds(self) -> float:
        return self._now() - self._before


async def measure(name: str, url: str, key: str, model: str, options: argparse.Namespace, pid: int | None) -> Row:
    from benchmarks.gateway_load import open_loop, saturate

    await saturate(url, key, model, clients=4, seconds=1.0)
    open_ = await open_loop(url, key, model, rate=options.rate, seconds=options.seconds)
    cpu = Cpu(pid) if pid is not None else None
    full = await saturate(url, key, model, clients=options.clients, seconds=options.seconds)
    spent = cpu.seconds * 1e6 / max(full.events, 1) if cpu is not None else float("nan")
    ttft = (open_.ttft_ms(0.5), open_.ttft_ms(0.99))
    return Row(name, full.rate, ttft, spent, open_.failed + full.failed)


async def run(options: argparse.Namespace, gateway: Any, stubs: Any) -> list[Row]:
    from benchmarks.gateway_load import TOKENS, openai_stub
    from controlplane.config import home
    from controlplane.inference.tokenization import load_tokenizer
    from tests.controlplane.inference.stub_worker import Script

    letter = load_tokenizer(home().models / "tiny-model").encode_foreign("a")[0]
    stubs.script(Script(tokens=[letter] * TOKENS, hit_tokens=16))
    stub = await openai_stub()
    stub_url = f"http://127.0.0.1:{stub.sockets[0].getsockname()[1]}"
    rows = [await measure("the clients' ceiling: stub alone", stub_url, KEY, "stub", options, None)]
    rows.append(await measure("galley", gateway.url, gateway.key, "tiny", options, gateway.process.pid))
    if options.litellm is not None:
        with litellm(options.litellm, stub_url) as (url, pid):
            rows.append(await measure(f"litellm {LITELLM}", url, KEY, "stub", options, pid))
    stub.close()
    return rows


@contextmanager
def litellm(python: Path, upstream: str) -> Iterator[tuple[str, int]]:
    """LiteLLM's proxy in front of `upstream`: one worker, no database, nothing logged."""
    import httpx

    from tests.running import free_port

    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "config.yaml"
        config.write_text(
            "model_list:\n- model_name: stub\n  litellm_params:\n    model: openai/stub\n"
            f"    api_base: {upstream}/v1\n    api_key: none\n"
            f"general_settings:\n  master_key: {KEY}\nlitellm_settings:\n  telemetry: false\n"
        )
        process = subprocess.Popen(
            [str(python.with_name("litellm")), "--config", str(config), "--port", str(port), "--num_workers", "1"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "LITELLM_LOG": "ERROR", "DJANGO_SETTINGS_MODULE": ""},
        )
        try:
            url = f"http://127.0.0.1:{port}"
            until = time.monotonic() + 180
            while True:
                try:
                    if httpx.get(f"{url}/health/liveliness", timeout=5).status_code == 200:
                        break
                except httpx.TransportError:
                    pass
                if process.poll() is not None or time.monotonic() > until:
                    raise SystemExit("litellm did not start")
                time.sleep(0.5)
            yield url, process.pid
        finally:
            process.terminate()
            process.wait(20)


@contextmanager
def served(folder: Path) -> Iterator[tuple[Any, Any]]:
    """A gateway on a database of its own, with `tiny-model` behind stub workers."""
    from controlplane.accounts.permissions import SYSTEM
    from controlplane.accounts.roles import Scope
    from controlplane.accounts.services import key_create, tenant_create
    from controlplane.config import home
    from controlplane.fleet.services import deployment_create
    from tests import settings as scratch
    from tests.controlplane.inference.conftest import write_tiny_model
    from tests.controlplane.inference.live import LiveGateway, StubThread
    from workers.protocol import Role
    from workers.spec import EngineSettings

    store = home().models / "tiny-model"
    shutil.rmtree(store, ignore_errors=True)
    write_tiny_model(store)
    tenant = tenant_create(actor=SYSTEM, slug="bench", name="Benchmark")
    _, raw = key_create(actor=SYSTEM, tenant=tenant, name="bench", scopes=[Scope.INFERENCE])
    deployment = deployment_create(
        actor=SYSTEM, name="tiny", model="tiny-model", prefill_replicas=1, decode_replicas=1, engine=EngineSettings()
    )
    assert deployment.revision is not None
    stubs = StubThread(folder, revision=deployment.revision.hash, valkey_url=scratch.VALKEY.url)
    for role in (Role.PREFILL, Role.DECODE):
        stubs.add(role)
    database = urlsplit(scratch.POSTGRES.url).path.lstrip("/")
    gateway = LiveGateway(
        key=raw, models_key="", sessions={}, stubs=stubs, database=database, log=folder / "gateway.log"
    )
    try:
        gateway.wait_ready(within_s=120)
        yield gateway, stubs
    finally:
        gateway.stop()
        stubs.stop()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=10.0, help="of each of the two runs of a row")
    parser.add_argument("--rate", type=float, default=20.0, help="requests a second of the open loop")
    parser.add_argument("--clients", type=int, default=16, help="of the closed loop")
    parser.add_argument("--litellm", type=Path, help="the Python of a virtual environment with LiteLLM")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()

    import django

    from tests import settings as scratch  # a data folder of its own, before Django reads its settings

    django.setup()
    from django.core.management import call_command

    from controlplane.launcher.services import EmbeddedServices

    with (
        EmbeddedServices(scratch.HOME, postgres=scratch.POSTGRES, valkey=scratch.VALKEY),
        tempfile.TemporaryDirectory(prefix="gw-") as folder,
    ):
        call_command("migrate", verbosity=0)
        with served(Path(folder)) as (gateway, stubs):
            rows = asyncio.run(run(options, gateway, stubs))
    print(f"{'':34} {'streams/s':>10} {'TTFT p50':>10} {'p99 (ms)':>9} {'CPU/event':>11} {'failed':>7}")
    for row in rows:
        p50, p99 = row.ttft_ms
        print(f"{row.name:34} {row.streams_s:10.1f} {p50:10.2f} {p99:9.2f} {row.cpu_us:8.0f} us {row.failed:7}")
    if options.litellm is None:
        print(f"litellm is left out: name an environment with litellm[proxy]=={LITELLM} by --litellm")
    elif len(rows) == 3 and rows[2].streams_s:
        print(f"galley serves {rows[1].streams_s / rows[2].streams_s:.1f} times the streams of litellm")
    if options.json is not None:
        options.json.write_text(json.dumps([vars(row) for row in rows]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
