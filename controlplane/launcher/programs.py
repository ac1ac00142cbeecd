"""The processes of one installation: their command lines, and the environment that they all share."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from controlplane.config import GalleySettings
from controlplane.launcher.process import Command
from workers.home import Home

ROOT = Path(__file__).resolve().parents[2]
MODEL = "smollm2-135m-instruct"
DEPLOYMENT = "smollm2"

AGENT = "agent"
GATEWAY = "gateway"
CONTROL = "control"
BEAT = "beat"
TELEMETRY = "telemetry"


def environment(settings: GalleySettings, home: Home, *, database_url: str, redis_url: str) -> dict[str, str]:
    """What every process of ours sees. `DATABASE_URL` and `REDIS_URL` are always set: one code path after this."""
    return {
        **os.environ,
        "GALLEY_HOME": str(home.root),
        "PORT": str(settings.port),
        "DATABASE_URL": database_url,
        "REDIS_URL": redis_url,
        "DJANGO_SETTINGS_MODULE": "controlplane.settings",
        "PYTHONUNBUFFERED": "1",
    }


def manage(env: dict[str, str], name: str, *arguments: str) -> Command:
    """`manage.py ARGUMENTS` as a command."""
    return Command(name=name, argv=(sys.executable, str(ROOT / "manage.py"), *arguments), env=env, cwd=ROOT)


def module(env: dict[str, str], name: str, *arguments: str, grace_s: float = 5.0) -> Command:
    """`python -m ARGUMENTS` as a command."""
    return Command(name=name, argv=(sys.executable, "-m", *arguments), env=env, cwd=ROOT, stop_grace_s=grace_s)


def supervised(
    settings: GalleySettings, home: Home, env: dict[str, str]
) -> tuple[tuple[Command, ...], tuple[Command, ...]]:
    """In the order of starting: what a first token needs (the agent loads the engines), and the rest."""
    celery = ("celery", "-A", "controlplane.celery")
    quiet = ("--without-gossip", "--without-mingle")
    first = (
        module(env, AGENT, "workers.node"),
        module(
            env,
            GATEWAY,
            "granian",
            "--interface", "asgi",
            "--host", settings.host,
            "--port", str(settings.port),
            "--workers", "1",
            "--runtime-mode", "st",
            "--loop", "asyncio",
            "--workers-kill-timeout", "3",
            "--no-access-log",
            "controlplane.asgi:application",
        ),
    )  # fmt: skip
    later = (
        manage(env, TELEMETRY, "telemetry", "run"),
        module(
            env, CONTROL, *celery, "worker", "-Q", "control", "--pool", "threads", "-c", "2", "-n", "control@%h",
            "-l", "INFO", *quiet,
        ),
        module(env, BEAT, *celery, "beat", "-s", str(home.state / "beat"), "--pidfile", "", "-l", "INFO"),
    )  # fmt: skip
    return first, later


def reachable_host(host: str) -> str:
    """Where this machine reaches a server that was bound to `host`."""
    bare = host.strip("[]")
    return {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "::1"}.get(bare, bare)  # noqa: S104
