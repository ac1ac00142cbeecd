"""What `make up` refuses, in two lines and without a traceback: the real launcher, on data folders of its own."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from controlplane.launcher.instance import Instance
from controlplane.launcher.postgres import EmbeddedPostgres
from controlplane.launcher.process import spawn
from tests.running import ROOT, clean_environment, free_port
from workers.home import Home

pytestmark = pytest.mark.integration


@pytest.fixture
def home() -> Iterator[Home]:
    with tempfile.TemporaryDirectory(prefix="galley-refused-") as folder:
        yield Home(Path(folder).resolve())


def up(home: Home, **extra: str) -> subprocess.CompletedProcess[str]:
    env = clean_environment(**{"GALLEY_HOME": str(home.root), "PORT": str(free_port()), **extra})
    return subprocess.run(
        [sys.executable, "-m", "controlplane.launcher", "up"],
        cwd=ROOT,
        env=env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def assert_refused(result: subprocess.CompletedProcess[str], what: str, action: str) -> None:
    assert result.returncode == 1, result.stdout + result.stderr
    first, second = result.stderr.strip().splitlines()
    assert first.startswith("error: ")
    assert what in first
    assert action in second
    assert "Traceback" not in result.stdout + result.stderr


def test_a_port_that_is_taken(home: Home) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        result = up(home, PORT=str(port))
    assert_refused(result, f"port {port}", f"PORT={port + 1}")
    assert f"process {os.getpid()}" in result.stderr


def test_another_launcher_on_the_folder(home: Home) -> None:
    instance = Instance(home)
    instance.take()
    try:
        assert_refused(up(home), f"already runs on {home.root} (process {os.getpid()})", "make down")
    finally:
        instance.release()


def test_a_foreign_postgres_on_the_folder(home: Home) -> None:
    postgres = EmbeddedPostgres(home)
    postgres.prepare()
    process = spawn(postgres.command(), home.logs / "postgres.log")
    try:
        postgres.wait_ready(process, log=home.logs / "postgres.log")
        assert_refused(up(home), f"PostgreSQL that Galley did not start (process {process.pid})", "GALLEY_HOME")
    finally:
        process.terminate()
        process.wait(10)


def test_a_database_that_is_not_there(home: Home) -> None:
    url = f"postgresql://cook:secret@127.0.0.1:{free_port()}/galley"
    result = up(home, DATABASE_URL=url)
    assert_refused(result, "DATABASE_URL (postgresql://cook@127.0.0.1", "without DATABASE_URL")
    assert "secret" not in result.stdout + result.stderr


def test_a_valkey_that_is_not_there(home: Home) -> None:
    result = up(home, REDIS_URL=f"redis://:secret@127.0.0.1:{free_port()}/0")
    assert_refused(result, "REDIS_URL (redis://127.0.0.1", "without REDIS_URL")
    assert "secret" not in result.stdout + result.stderr


def test_an_unknown_setting(home: Home) -> None:
    assert_refused(up(home, GALLEY_PRT="1"), "GALLEY_PRT", "environment variable")


def test_a_folder_that_cannot_be_written(home: Home) -> None:
    blocked = home.root / "file"
    blocked.write_text("not a folder")
    result = up(Home(blocked))
    assert_refused(result, str(blocked), "")
