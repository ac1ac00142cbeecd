"""The live feed with the real consumer, channel layer, sessions and Valkey."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from asgiref.testing import ApplicationCommunicator
from channels.layers import get_channel_layer
from django.conf import settings
from django.db import connections
from django.test import Client

from controlplane.accounts.models import User
from controlplane.accounts.permissions import Role
from controlplane.asgi import application
from controlplane.telemetry import names
from dashboard import consumers, metrics
from tests.controlplane.accounts import factories as accounts
from tests.dashboard import factories

pytestmark = [pytest.mark.integration, pytest.mark.django_db(transaction=True)]


@pytest.fixture(autouse=True)
async def _connections_closed() -> AsyncIterator[None]:
    """The consumer's thread keeps its connection, as it should; the test database cannot be dropped under it."""
    yield
    await sync_to_async(connections.close_all)()


def session_of(user: User | None) -> str:
    client = Client()
    if user is not None:
        client.force_login(user)
    return client.cookies[settings.SESSION_COOKIE_NAME].value if user is not None else ""


class Socket:
    """A browser's end of the WebSocket (channels' own test client imports daphne, which we do not run)."""

    def __init__(self, cookie: str, origin: str) -> None:
        headers = [
            (b"origin", origin.encode()),
            (b"host", b"localhost"),
            (b"cookie", f"{settings.SESSION_COOKIE_NAME}={cookie}".encode()),
        ]
        scope = {"type": "websocket", "path": "/ws/live", "query_string": b"", "headers": headers, "subprotocols": []}
        self._wire = ApplicationCommunicator(application, scope)

    async def connect(self) -> bool:
        """Whether the handshake was accepted."""
        await self._wire.send_input({"type": "websocket.connect"})
        return (await self._wire.receive_output(timeout=10))["type"] == "websocket.accept"

    async def message(self) -> dict[str, Any]:
        output = await self._wire.receive_output(timeout=10)
        assert output["type"] == "websocket.send", output
        found: dict[str, Any] = json.loads(output["text"])
        return found

    async def close_code(self) -> int:
        """Of the next close; what comes before it is passed over."""
        async with asyncio.timeout(10):
            while (output := await self._wire.receive_output(timeout=10))["type"] != "websocket.close":
                pass
        return int(output["code"])

    async def leave(self) -> None:
        await self._wire.send_input({"type": "websocket.disconnect", "code": 1000})
        await self._wire.wait(timeout=10)


@asynccontextmanager
async def page(user: User | None, origin: str = "http://localhost") -> AsyncIterator[Socket]:
    socket = Socket(await sync_to_async(session_of)(user), origin)
    try:
        yield socket
    finally:
        await socket.leave()


async def publish(*numbers: int) -> None:
    layer = get_channel_layer()
    for seq in numbers:
        await layer.group_send(names.GROUP, {"type": names.MESSAGE_TYPE, "frame": factories.encoded(seq)})


async def made(role: Role | None) -> User:
    return await sync_to_async(accounts.user)(role)


async def test_a_snapshot_comes_first_and_frames_follow_in_order(valkey_url: str) -> None:
    factories.store_frames(valkey_url, 1, 2, 3)
    async with page(await made(Role.ADMINISTRATOR)) as socket:
        assert await socket.connect()
        snapshot = await socket.message()
        assert (snapshot["kind"], snapshot["seq"]) == ("snapshot", 3)
        assert [frame["seq"] for frame in snapshot["frames"]] == [1, 2, 3]
        assert snapshot["frames"][-1]["workers"]
        await publish(4, 5)
        assert [(await socket.message())["seq"] for _ in range(2)] == [4, 5]


async def test_a_frame_that_the_snapshot_had_is_not_sent_again(valkey_url: str) -> None:
    factories.store_frames(valkey_url, 7, 8)
    async with page(await made(Role.VIEWER)) as socket:
        await socket.connect()
        assert (await socket.message())["seq"] == 8
        await publish(8, 9)
        assert (await socket.message())["seq"] == 9


async def test_money_is_for_who_may_see_costs(valkey_url: str) -> None:
    factories.store_frames(valkey_url, 1)
    async with page(await made(Role.VIEWER)) as viewer, page(await made(Role.BILLING)) as billing:
        await viewer.connect()
        await billing.connect()
        assert "cost_per_hour_usd" not in (await viewer.message())["frames"][-1]
        assert (await billing.message())["frames"][-1]["cost_per_hour_usd"] == "0.24"
        await publish(2)
        assert "revenue_per_hour_usd" not in (await viewer.message())["frame"]
        assert (await billing.message())["frame"]["revenue_per_hour_usd"] == "1.5"


@pytest.mark.parametrize(
    ("who", "code"),
    [(None, consumers.CLOSE_SIGNED_OUT), (lambda: accounts.user(None), consumers.CLOSE_FORBIDDEN)],
    ids=["anonymous", "without a role"],
)
async def test_others_are_told_why_they_see_nothing(valkey_url: str, who: Callable[[], User] | None, code: int) -> None:
    async with page(await sync_to_async(who)() if who else None) as socket:
        assert await socket.connect()
        assert await socket.close_code() == code


async def test_a_page_of_another_site_gets_no_socket(valkey_url: str) -> None:
    async with page(await made(Role.ADMINISTRATOR), origin="http://elsewhere.example") as socket:
        assert not await socket.connect()


async def test_silence_is_filled_with_heartbeats(valkey_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumers, "HEARTBEAT_S", 0.05)
    async with page(await made(Role.VIEWER)) as socket:
        await socket.connect()
        kinds = [(await socket.message())["kind"] for _ in range(3)]
        assert kinds == ["snapshot", "heartbeat", "heartbeat"]


def _sign_out(user: User) -> None:
    user.set_password("another-password-1")  # ends the user's sessions
    user.save()


def _demote(user: User) -> None:
    user.memberships.all().delete()


@pytest.mark.parametrize(
    ("change", "code"),
    [(_sign_out, consumers.CLOSE_SIGNED_OUT), (_demote, consumers.CLOSE_FORBIDDEN)],
    ids=["signed out", "role taken"],
)
async def test_who_loses_the_right_loses_the_feed(
    valkey_url: str, monkeypatch: pytest.MonkeyPatch, change: Callable[[User], None], code: int
) -> None:
    monkeypatch.setattr(consumers, "HEARTBEAT_S", 0.05)
    monkeypatch.setattr(consumers, "RECHECK_S", 0.1)
    user = await made(Role.VIEWER)
    async with page(user) as socket:
        await socket.connect()
        assert (await socket.message())["kind"] == "snapshot"
        await sync_to_async(change)(user)
        assert await socket.close_code() == code


async def test_a_slow_page_misses_old_frames_and_memory_stays_bounded() -> None:
    consumer = consumers.LiveConsumer()
    consumer._queue = asyncio.Queue(consumers.QUEUE_FRAMES)
    before = metrics.LIVE_FRAMES_DROPPED._value.get()
    for seq in range(consumers.QUEUE_FRAMES + 3):
        await consumer.telemetry_frame({"frame": factories.encoded(seq)})
    assert metrics.LIVE_FRAMES_DROPPED._value.get() - before == 3
    assert json.loads(consumer._queue.get_nowait())["seq"] == 3
