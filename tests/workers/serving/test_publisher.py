"""Records of ended requests leave once, in order, whatever Valkey does meanwhile."""

from __future__ import annotations

import asyncio
import tempfile
from collections import deque
from pathlib import Path
from typing import cast

import msgspec
import pytest
import redis

from tests.controlplane.telemetry.factories import worker as snapshot
from tests.workers.conftest import NOWHERE, Workers
from workers.protocol import RequestId, Role
from workers.records import RECORDS_STREAM, decode
from workers.serving.connection import Connection
from workers.serving.publisher import Publisher
from workers.serving.requests import Ended, Live, Way
from workers.spec import WorkerSpec


def ended(name: str) -> Ended:
    nobody = cast(Connection, None)
    return Ended(Live(RequestId(name), nobody, Way.LOCAL, 0.0, 0.0, prompt_tokens=1), "stop", 1)


def names(of: deque[Ended]) -> str:
    return "".join(one.entry.request_id for one in of)


@pytest.fixture
def spec() -> WorkerSpec:
    return Workers(Path(tempfile.gettempdir())).spec(Role.BOTH, name="publisher")


def publisher(spec: WorkerSpec, waiting: deque[Ended], url: str) -> Publisher:
    return Publisher(msgspec.structs.replace(spec, valkey_url=url), snapshot, waiting)


async def turn(publisher: Publisher, waiting: deque[Ended], *meanwhile: str) -> None:
    """One turn, in which other requests end as soon as it waits."""
    publishing = asyncio.create_task(publisher._publish())
    await asyncio.sleep(0)
    waiting.extend(map(ended, meanwhile))
    await publishing


@pytest.mark.integration
async def test_what_ends_while_records_are_sent_is_sent_next(spec: WorkerSpec, valkey_url: str) -> None:
    waiting = deque(map(ended, "abc"), maxlen=3)
    one = publisher(spec, waiting, valkey_url)
    await turn(one, waiting, "d")
    assert names(waiting) == "d"
    await turn(one, waiting)
    with redis.Redis.from_url(valkey_url) as client:
        entries = client.xrange(RECORDS_STREAM)
    sent = [
        record.attempt_id for _, fields in entries for record in decode(fields[b"r"]) if record.worker == "publisher"
    ]
    assert sent == ["a", "b", "c", "d"]
    await one.withdraw()


@pytest.mark.parametrize(("meanwhile", "left"), [("", "abc"), ("d", "abcd"), ("de", "bcde"), ("defgh", "efgh")])
async def test_what_could_not_be_sent_waits_and_the_oldest_go_first(
    spec: WorkerSpec, meanwhile: str, left: str
) -> None:
    waiting = deque(map(ended, "abc"), maxlen=4)
    one = publisher(spec, waiting, NOWHERE)
    await turn(one, waiting, *meanwhile)
    assert (one.failures, names(waiting)) == (1, left)
