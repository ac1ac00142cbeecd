"""A reply as a stream of events, and as one body, in any protocol. Both own their completion and always close it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator

from controlplane.inference.completion import DISCONNECTED, Completion, Update
from controlplane.inference.errors import ApiError, internal
from controlplane.inference.replies.base import Answer, Reply, ReplyFormat

log = logging.getLogger(__name__)


class OwnedStream:
    """An async iterator that closes its completion however it ends: used up, cancelled, or never begun.

    A generator that was never started runs no `finally`; the server may drop a response in that state.
    """

    def __init__(self, completion: Completion, parts: AsyncIterator[bytes]) -> None:
        self._completion = completion
        self._parts = parts
        self._loop = asyncio.get_running_loop()

    def __aiter__(self) -> OwnedStream:
        return self

    async def __anext__(self) -> bytes:
        try:
            return await anext(self._parts)
        except BaseException:  # includes cancellation: the client left
            self._completion.close(DISCONNECTED)
            raise

    def __del__(self) -> None:
        if not self._loop.is_closed():  # perhaps on another thread: frames are written on the loop's
            self._loop.call_soon_threadsafe(self._completion.close, DISCONNECTED)


async def first_news(completion: Completion, wait_s: float) -> Update | None:
    """The first news that says what was cached: a restart before it says nothing. None after `wait_s` seconds."""
    until = time.monotonic() + wait_s
    while True:
        update = await completion.next(max(until - time.monotonic(), 0.0))
        if update is None or not update.restarted:
            return update


async def stream_events(
    reply: Reply, form: ReplyFormat, completion: Completion, first: Update | None
) -> AsyncIterator[bytes]:
    """The body of a streamed reply. `first` is news that came before the headers were sent."""
    try:
        pending = first
        while pending is None:
            yield form.keep_alive
            pending = await first_news(completion, reply.keepalive_s)
        yield form.begin(completion)
        while True:
            # Everything that is there goes out in one write, each update as an event of its own.
            events: list[bytes] = []
            while pending is not None:
                events.append(form.update(completion, pending))
                pending = None if completion.finished else completion.poll()
            if body := b"".join(events):
                yield body
            if completion.finished:
                break
            pending = await completion.next(reply.keepalive_s)
            if pending is None:
                yield form.keep_alive
        yield form.end(completion)
    except ApiError as error:
        yield form.error(error)
    except Exception:
        log.exception("request %s failed in mid-stream", reply.id)
        completion.close("internal")
        yield form.error(internal())


class Collector:
    """Gathers a whole reply."""

    def __init__(self, form: ReplyFormat, completion: Completion, choices: int) -> None:
        self._form = form
        self._completion = completion
        self._answers = [Answer() for _ in range(choices)]
        self.started = False

    async def advance(self, wait_s: float) -> bool:
        """Take news until the reply is complete (True), or `wait_s` seconds passed without any (False)."""
        while not self._completion.finished:
            update = await self._completion.next(wait_s)
            if update is None:
                return False
            self._take(update)
        return True

    def _take(self, update: Update) -> None:
        self.started = self.started or update.started
        if update.restarted:
            self._answers[update.choice] = Answer()
        self._answers[update.choice].take(update)

    def body(self) -> bytes:
        return self._form.whole(self._completion, self._answers)


async def late_body(reply: Reply, completion: Completion, collector: Collector) -> AsyncIterator[bytes]:
    """The body of an unstreamed reply that takes long: blank lines, then the JSON.

    The status is out by now. An error breaks the connection off, which clients treat as the failure it is: a body that
    looks complete would not be.
    """
    yield b"\n"
    while not await collector.advance(reply.keepalive_s):
        yield b"\n"
    yield collector.body()
