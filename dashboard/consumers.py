"""The live feed: one WebSocket per page. A snapshot on connecting, then one frame a second, in order.

The channel layer drops silently over capacity, and so does the queue here when a browser is slow: sequence numbers show
it, and the page fetches a snapshot.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Any, Final

import msgspec
import redis
from asgiref.sync import sync_to_async
from channels.auth import get_user
from channels.db import database_sync_to_async
from channels.generic.websocket import AsyncWebsocketConsumer
from django.conf import settings
from django.contrib.auth.models import AnonymousUser
from django.db import DatabaseError
from django.utils.module_loading import import_string

from controlplane.accounts.models import User
from controlplane.accounts.permissions import Action, can, principal_of_user
from controlplane.telemetry import selectors as telemetry
from dashboard import metrics
from dashboard.access import may_see_money
from dashboard.payloads import frame_message, frame_seq, heartbeat_message, snapshot_message

log = logging.getLogger(__name__)

GROUP: Final = "telemetry"
SNAPSHOT_S: Final = 300
QUEUE_FRAMES: Final = 8
"""Frames that wait for a slow browser; older ones give way."""
HEARTBEAT_S: Final = 5.0
"""The longest silence on a healthy socket."""
SEND_DEADLINE_S: Final = 20.0
"""A browser that takes nothing for this long has gone without saying so."""
RECHECK_S: Final = 30.0
"""How long a session that has ended goes on seeing frames, at most."""

CLOSE_SIGNED_OUT: Final = 4401
CLOSE_FORBIDDEN: Final = 4403
CLOSE_TRY_LATER: Final = 1013


class LiveConsumer(AsyncWebsocketConsumer):
    """Accepts first and closes with a code after: a browser cannot read why a handshake was refused."""

    groups = ()

    async def connect(self) -> None:
        self._queue: asyncio.Queue[str] = asyncio.Queue(QUEUE_FRAMES)
        self._sender: asyncio.Task[None] | None = None
        self._money = False
        await self.accept()
        try:
            admitted = await self._admitted(self.scope["user"])
        except DatabaseError as error:
            log.warning("live feed: the database is away (%s)", error)
            await self.close(CLOSE_TRY_LATER)
            return
        if admitted:
            # The sender runs beside `dispatch`, which goes on taking frames from the channel layer.
            self._sender = asyncio.create_task(self._run())
            metrics.LIVE_CONNECTIONS.inc()

    async def disconnect(self, code: int) -> None:
        if self._sender is None:
            return
        metrics.LIVE_CONNECTIONS.dec()
        self._sender.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._sender
        with contextlib.suppress(redis.RedisError, OSError):  # the subscription ends with the connection anyway
            await self.channel_layer.group_discard(GROUP, self.channel_name)

    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None) -> None:
        """The feed goes one way; what a browser sends is not read."""

    async def telemetry_frame(self, event: dict[str, Any]) -> None:
        """A frame from the channel layer."""
        if self._queue.full():
            self._queue.get_nowait()
            metrics.LIVE_FRAMES_DROPPED.inc()
        self._queue.put_nowait(event["frame"])

    async def _admitted(self, user: User | AnonymousUser) -> bool:
        """Whether `user` may go on watching; otherwise the socket is closed with the reason."""
        if not isinstance(user, User):  # AuthMiddleware hands out a lazy object that passes for its user
            await self.close(CLOSE_SIGNED_OUT)
            return False
        principal = await database_sync_to_async(principal_of_user)(user)
        if not can(principal, Action.TELEMETRY_VIEW):
            await self.close(CLOSE_FORBIDDEN)
            return False
        self._money = may_see_money(principal)
        return True

    async def _run(self) -> None:
        try:
            await self._feed()
        except TimeoutError:  # before OSError, of which it is one
            log.info("live feed: a browser takes nothing any more")
            await self.close(CLOSE_TRY_LATER)
        except (redis.RedisError, OSError, DatabaseError) as error:
            log.warning("live feed: Valkey or the database is away (%s)", error)
            await self.close(CLOSE_TRY_LATER)

    async def _feed(self) -> None:
        # Subscribed before the snapshot is read: no frame falls between the two.
        await self.channel_layer.group_add(GROUP, self.channel_name)
        snapshot = await sync_to_async(telemetry.snapshot, thread_sensitive=False)(seconds=SNAPSHOT_S)
        await self._send(snapshot_message(snapshot, money=self._money))
        shown: int = snapshot["seq"]
        loop = asyncio.get_running_loop()
        recheck_at = loop.time() + RECHECK_S
        while True:
            if loop.time() >= recheck_at:
                if not await self._admitted(await self._fresh_user()):
                    return
                recheck_at = loop.time() + RECHECK_S
            try:
                frame = await asyncio.wait_for(self._queue.get(), HEARTBEAT_S)
            except TimeoutError:
                await self._send(heartbeat_message())
                continue
            try:
                seq = frame_seq(frame)
            except msgspec.DecodeError:
                metrics.LIVE_FRAMES_DROPPED.inc()
                log.exception("live feed: a frame that is none")
                continue
            # Already in the snapshot. A smaller one at some distance is a telemetry process that began anew.
            if shown - QUEUE_FRAMES * 2 < seq <= shown:
                continue
            shown = seq
            await self._send(frame_message(frame, money=self._money))

    async def _send(self, message: str) -> None:
        async with asyncio.timeout(SEND_DEADLINE_S):
            await self.send(text_data=message)

    async def _fresh_user(self) -> User | AnonymousUser:
        """The user as the session and the database have it now, not as they were when the socket opened."""
        store = import_string(f"{settings.SESSION_ENGINE}.SessionStore")
        return await get_user({"session": store(self.scope["session"].session_key)})
