"""Nudges: a request that sends one never waits long for the broker."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from controlplane.celery import app, node_queue
from controlplane.fleet import signals
from tests.controlplane.services_of_own import OwnValkey

pytestmark = pytest.mark.integration


@pytest.fixture
def broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[OwnValkey]:
    valkey = OwnValkey(tmp_path)
    valkey.start()
    connection = app.connection_for_write(valkey.url, transport_options=signals.IMPATIENT)
    monkeypatch.setattr(signals, "_broker", lambda: connection)
    yield valkey
    valkey.stop()


@pytest.mark.timeout(60)
def test_a_silent_or_absent_broker_is_given_up(broker: OwnValkey) -> None:
    queue = node_queue("n1")

    def waiting() -> int:
        with redis.Redis.from_url(broker.url) as client:
            return int(client.llen(queue))

    def send() -> None:
        signals._send(signals.NODE_NUDGE_TASK, queue=queue)

    send()
    assert waiting() == 1
    os.kill(broker.pid, signal.SIGSTOP)
    send()
    os.kill(broker.pid, signal.SIGCONT)
    send()
    assert waiting() >= 2
    broker.stop()
    send()
    broker.start()
    before = waiting()
    send()
    assert waiting() == before + 1
