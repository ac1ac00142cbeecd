"""Run the telemetry process until SIGTERM or SIGINT."""

from __future__ import annotations

import asyncio
import signal
from argparse import ArgumentParser, Namespace

from django.core.management.base import OutputWrapper

from controlplane.config import settings
from controlplane.telemetry.process import TelemetryProcess


def add_arguments(parser: ArgumentParser) -> None:
    pass


def run(options: Namespace, out: OutputWrapper) -> None:
    asyncio.run(_run())


async def _run() -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    await TelemetryProcess(settings().redis_url).run(stop)
