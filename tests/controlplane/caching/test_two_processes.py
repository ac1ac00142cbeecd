"""A change of the policy reaches a worker's store in another process: at its next lookup, and its watchers unasked."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.controlplane.caching import factories

pytestmark = [pytest.mark.integration, pytest.mark.django_db, pytest.mark.usefixtures("empty_store")]

WORKER = Path(__file__).with_name("policy_worker.py")
ROOT = Path(__file__).resolve().parents[3]


class Worker:
    """A store in a process of its own; it answers a line with a line, and tells of policies that it was told of."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(WORKER)],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def heard(self) -> dict[str, Any]:
        """The next line it says; the test's own limit ends the wait."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the worker ended"
        answer: dict[str, Any] = json.loads(line)
        return answer

    def ask(self, command: str) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(command + "\n")
        self._process.stdin.flush()
        return self.heard()

    def stop(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(20)


@pytest.fixture
def save(django_capture_on_commit_callbacks: Any) -> Callable[..., None]:
    """Saves a policy and commits, as far as everybody else can tell."""

    def saved(**fields: Any) -> None:
        with django_capture_on_commit_callbacks(execute=True):
            factories.save(factories.edited(**fields))

    return saved


@pytest.fixture
def worker() -> Iterator[Worker]:
    started = Worker()
    assert started.heard() == {"ready": True}
    yield started
    started.stop()


def test_a_change_counts_from_the_next_lookup_on_and_comes_back(worker: Worker, save: Callable[..., None]) -> None:
    assert worker.ask("put") == {"blocks": 4}
    assert worker.ask("find") == {"blocks": 4, "version": 0}
    save(ttl_s=0.0)
    assert worker.ask("find") == {"blocks": 0, "version": 2}, "no message was waited for"
    save(ttl_s=3600.0)
    assert worker.ask("find") == {"blocks": 4, "version": 3}, "what was not swept is back"


def test_a_process_that_looks_nothing_up_is_told_too(worker: Worker, save: Callable[..., None]) -> None:
    assert worker.ask("watch") == {"watching": True}
    save(ttl_s=60.0)
    assert worker.heard() == {"told": 2}
    save(ttl_s=61.0)
    assert worker.heard() == {"told": 3}


def test_a_purge_reaches_a_process_that_did_not_order_it(worker: Worker) -> None:
    from controlplane.accounts.permissions import SYSTEM
    from controlplane.caching import services
    from controlplane.caching.purging import Scope

    worker.ask("put")
    assert worker.ask("watch") == {"watching": True}
    services.purge(actor=SYSTEM, scope=Scope("class", "chat"), reason="a test")
    told = {worker.heard()["purged"] for _ in range(3)}
    assert told == {"c:chat", "c:chat/sidecar", "c:chat/inner/sidecar"}
    assert worker.ask("find")["blocks"] == 0
