"""A chat completion as a stream of events, and as one response. Both own their completion and always close it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from msgspec import UNSET

from controlplane.inference import sse
from controlplane.inference.chat_format import (
    ChatResponse,
    Chunk,
    ChunkChoice,
    Delta,
    LogprobsBody,
    Message,
    ResponseChoice,
    TokenLogprob,
    encode,
    fingerprint,
    logprobs_body,
    usage_body,
)
from controlplane.inference.completion import Completion, Update
from controlplane.inference.errors import ApiError, internal
from controlplane.inference.schema import ChatCall
from controlplane.inference.tokenization import ModelTokenizer

log = logging.getLogger(__name__)

DISCONNECTED = "disconnected"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatReply:
    """What every part of one reply says the same of."""

    id: str
    created: int
    call: ChatCall
    tokenizer: ModelTokenizer
    thinks: bool
    keepalive_s: float

    def chunk(self, completion: Completion, choices: list[ChunkChoice], *, usage: bool = False) -> bytes:
        body = Chunk(
            id=self.id,
            created=self.created,
            model=self.call.model,
            system_fingerprint=fingerprint(completion.revision),
            choices=choices,
        )
        if self.call.include_usage:
            body.usage = usage_body(completion.usage) if usage else None
        return sse.event(encode(body))

    def logprobs(self, update: Update) -> LogprobsBody | None:
        if self.call.logprobs is None or not update.tokens:
            return None
        return logprobs_body(update, self.tokenizer, self.call.logprobs)


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


async def stream_events(reply: ChatReply, completion: Completion, first: Update | None) -> AsyncIterator[bytes]:
    """The body of a streamed reply. `first` is news that came before the headers were sent."""
    try:
        pending = first
        while pending is None:
            yield sse.KEEP_ALIVE
            pending = await completion.next(reply.keepalive_s)
        roles = [ChunkChoice(index, Delta(role="assistant", content="")) for index in range(reply.call.choices)]
        yield reply.chunk(completion, roles)
        while True:
            # Everything that is there goes out in one write, each update as an event of its own.
            events: list[bytes] = []
            while pending is not None:
                events += _update_events(reply, completion, pending)
                pending = None if completion.finished else completion.poll()
            if events:
                yield b"".join(events)
            if completion.finished:
                break
            pending = await completion.next(reply.keepalive_s)
            if pending is None:
                yield sse.KEEP_ALIVE
        if reply.call.include_usage:
            yield reply.chunk(completion, [], usage=True)
        yield sse.DONE
    except ApiError as error:
        yield sse.error_event(error)
    except Exception:
        log.exception("request %s failed in mid-stream", reply.id)
        completion.close("internal")
        yield sse.error_event(internal())


def _update_events(reply: ChatReply, completion: Completion, update: Update) -> list[bytes]:
    events = []
    logprobs = reply.logprobs(update)
    if update.reasoning:
        delta = Delta(reasoning_content=update.reasoning)
        events.append(reply.chunk(completion, [ChunkChoice(update.choice, delta)]))
    if update.content or logprobs is not None:
        delta = Delta(content=update.content)
        events.append(reply.chunk(completion, [ChunkChoice(update.choice, delta, logprobs)]))
    if update.finish_reason is not None:
        choice = ChunkChoice(update.choice, Delta(), None, update.finish_reason)
        events.append(reply.chunk(completion, [choice]))
    return events


@dataclass(slots=True)
class _Answer:
    content: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finish_reason: str | None = None


class Collector:
    """Gathers a whole reply."""

    def __init__(self, reply: ChatReply, completion: Completion) -> None:
        self._reply = reply
        self._completion = completion
        self._answers = [_Answer() for _ in range(reply.call.choices)]
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
            self._answers[update.choice] = _Answer()
        answer = self._answers[update.choice]
        answer.content.append(update.content)
        answer.reasoning.append(update.reasoning)
        if (logprobs := self._reply.logprobs(update)) is not None:
            answer.logprobs += logprobs.content
        answer.finish_reason = update.finish_reason or answer.finish_reason

    def body(self) -> bytes:
        reply = self._reply
        choices = [
            ResponseChoice(
                index=index,
                message=Message(
                    role="assistant",
                    content="".join(answer.content),
                    reasoning_content="".join(answer.reasoning) if reply.thinks else UNSET,
                ),
                logprobs=LogprobsBody(answer.logprobs) if reply.call.logprobs is not None else None,
                finish_reason=answer.finish_reason,
            )
            for index, answer in enumerate(self._answers)
        ]
        return encode(
            ChatResponse(
                id=reply.id,
                created=reply.created,
                model=reply.call.model,
                system_fingerprint=fingerprint(self._completion.revision),
                choices=choices,
                usage=usage_body(self._completion.usage),
            )
        )


async def late_body(reply: ChatReply, completion: Completion, collector: Collector) -> AsyncIterator[bytes]:
    """The body of an unstreamed reply that takes long: blank lines, then the JSON.

    The status is out by now. An error breaks the connection off, which clients treat as the failure it is: a body that
    looks complete would not be.
    """
    yield b"\n"
    while not await collector.advance(reply.keepalive_s):
        yield b"\n"
    yield collector.body()
