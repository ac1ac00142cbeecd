"""Shared fixtures: real PostgreSQL and Valkey, a real browser, and seeds by node id."""

from __future__ import annotations

import os
import random
import signal
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy
import pytest

if TYPE_CHECKING:  # imported where they are used: unit tests need none of them
    from playwright.sync_api import Browser

    from tests.reporting import Report
    from tests.running import System

FIGURES = pytest.StashKey[list[str]]()
BROWSER_FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
)


@pytest.fixture(autouse=True)
def seeded(request: pytest.FixtureRequest) -> int:
    """Each test draws the same numbers whatever runs beside it; the seed, for generators of its own."""
    seed = zlib.crc32(request.node.nodeid.encode())
    random.seed(seed)
    numpy.random.seed(seed)
    if "torch" in sys.modules:  # not imported for its sake: most tests need none
        sys.modules["torch"].manual_seed(seed)
    return seed


@pytest.fixture(scope="session")
def report(request: pytest.FixtureRequest) -> Report:
    """Call it with a line to show under the results."""
    return request.config.stash[FIGURES].append


def pytest_configure(config: pytest.Config) -> None:
    config.stash[FIGURES] = []
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # who ends the run ends what its fixtures started


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if config.stash[FIGURES]:
        terminalreporter.section("figures")
        for line in config.stash[FIGURES]:
            terminalreporter.write_line(line)


@pytest.fixture(scope="session")
def services() -> Iterator[dict[str, str]]:
    """PostgreSQL and Valkey for the whole run, at the addresses that the settings already name."""
    from controlplane.launcher.services import EmbeddedServices
    from tests.settings import HOME, POSTGRES, VALKEY

    with EmbeddedServices(HOME, postgres=POSTGRES, valkey=VALKEY):
        if VALKEY.url != os.environ["REDIS_URL"]:  # Django has read it; everything after would fail less plainly
            pytest.exit("the port that was chosen for Valkey has been taken meanwhile; run the tests again", 3)
        yield {"DATABASE_URL": os.environ["DATABASE_URL"], "REDIS_URL": os.environ["REDIS_URL"]}


@pytest.fixture(scope="session")
def django_db_modify_db_settings(services: dict[str, str]) -> None:
    """pytest-django's `db` asks for this first: whoever uses the database gets the services."""


@pytest.fixture
def valkey_url(services: dict[str, str]) -> Iterator[str]:
    """URL of an empty Valkey; emptied again afterwards."""
    import redis

    url = services["REDIS_URL"]
    with redis.Redis.from_url(url) as client:
        client.flushall()
        yield url
        client.flushall()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--system", metavar="HOME:PORT", help="use a Galley that runs already (while writing tests)")


@pytest.fixture(scope="session")
def system(request: pytest.FixtureRequest) -> Iterator[System]:
    """The whole system, once per run: gateway, Celery, agent, telemetry, one prefill and one decode engine."""
    from tests.running import System

    given = request.config.getoption("--system")
    if given is not None:
        home, _, port = given.rpartition(":")
        yield System(home=Path(home).resolve(), port=int(port))
        return
    running = System.new()
    try:
        running.start()
        yield running
    finally:
        running.destroy()


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Chromium. Tests that use it are plain functions: playwright's synchronous interface excludes an event loop."""
    from playwright.sync_api import sync_playwright

    from tools.browser import find_chromium

    executable = find_chromium()
    if executable is None:
        message = "no chromium here, and the set-up could not install it"
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=executable, args=list(BROWSER_FLAGS))
        yield started
        started.close()
