"""A gateway as the tests need one: it speaks the protocol to real worker processes and collects what they say."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from workers import protocol
from workers.network.security import NO_SECURITY, LinkSecurity
from workers.network.streams import open_stream
from workers.protocol import (
    Address,
    CacheScope,
    Cancel,
    Decode,
    ErrorCode,
    Failed,
    Finish,
    Frame,
    Hello,
    PeerKind,
    Prefill,
    Refused,
    RequestId,
    Sampling,
    Scheduled,
    Status,
    Tokens,
    Welcome,
    pack_tokens,
)


@dataclass
class Heard:
    """Everything said about one request by one worker."""

    tokens: dict[int, int] = field(default_factory=dict)
    finish: Finish | None = None
    failed: Failed | None = None
    scheduled: Scheduled | None = None

    @property
    def ended(self) -> bool:
        return self.finish is not None or self.failed is not None


class Client:
    """One connection to one worker."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, welcome: Welcome, path: str) -> None:
        self.welcome = welcome
        self.path = path
        self.statuses: list[Status] = []
        self.heard: dict[RequestId, Heard] = {}
        self.closed = False
        self.frames: list[Frame] = []
        self._writer = writer
        self._news = asyncio.Condition()
        self._task = asyncio.create_task(self._read(reader))

    @classmethod
    async def connect(
        cls,
        path: str,
        *,
        kind: PeerKind = PeerKind.GATEWAY,
        expect: Address | None = None,
        peer: str = "test",
        security: LinkSecurity = NO_SECURITY,
    ) -> Client:
        """`path` of a unix socket, or a `tcp:` endpoint. Raises ConnectionRefusedError with the refusal's code."""
        endpoint = path if path.startswith("tcp:") else f"unix:{path}"
        reader, writer = await open_stream(endpoint, security)
        writer.write(protocol.encode(Hello(peer=peer, kind=kind, expect=expect)))
        frame = await protocol.read_frame(reader)
        if isinstance(frame, Refused):
            writer.close()
            raise ConnectionRefusedError(frame.code)
        assert isinstance(frame, Welcome)
        return cls(reader, writer, frame, path)

    def send(self, frame: Frame) -> None:
        self._writer.write(protocol.encode(frame))

    def about(self, request_id: str) -> Heard:
        return self.heard.setdefault(RequestId(request_id), Heard())

    async def until(self, condition: Callable[[], object], timeout_s: float = 30.0) -> None:
        async with asyncio.timeout(timeout_s), self._news:
            await self._news.wait_for(condition)

    async def status_where(self, condition: Callable[[Status], object], timeout_s: float = 30.0) -> Status:
        """The next status that `condition` holds for; not one that was on its way when this was called."""
        seen = len(self.statuses) + 1
        await self.until(lambda: len(self.statuses) > seen and condition(self.statuses[-1]), timeout_s)
        return self.statuses[-1]

    async def close(self) -> None:
        self._writer.close()
        await self._task

    def stop_reading(self) -> None:
        self._task.cancel()
        self._writer.transport.pause_reading()  # type: ignore[attr-defined]

    async def flush(self) -> None:
        """Raises ConnectionError where the worker closed."""
        await self._writer.drain()

    def abort(self) -> None:
        self._writer.transport.abort()

    async def _read(self, reader: asyncio.StreamReader) -> None:
        try:
            while (frame := await protocol.read_frame(reader)) is not None:
                self._note(frame)
                async with self._news:
                    self._news.notify_all()
        except (OSError, protocol.ProtocolError):
            pass  # a killed worker ends in the middle of a frame
        self.closed = True
        async with self._news:
            self._news.notify_all()

    def _note(self, frame: Frame) -> None:
        self.frames.append(frame)
        match frame:
            case Status():
                self.statuses.append(frame)
            case Scheduled():
                self.about(frame.request_id).scheduled = frame
            case Failed():
                self.about(frame.request_id).failed = frame
            case Tokens(deltas=deltas):
                for delta in deltas:
                    heard = self.about(delta.request_id)
                    for offset, token in enumerate(delta.tokens):
                        assert delta.index + offset not in heard.tokens, "a token was sent twice"
                        heard.tokens[delta.index + offset] = token
                    heard.finish = delta.finish or heard.finish


SALT = b"tenant-a"


def sampling(max_tokens: int, stop: tuple[int, ...] = ()) -> Sampling:
    return Sampling(temperature=0.0, max_tokens=max_tokens, stop_token_ids=stop)


def prefill_frame(
    request_id: str,
    to: Welcome,
    prompt: list[int],
    max_tokens: int,
    *,
    decode: Address | None = None,
    stop: tuple[int, ...] = (),
    deadline_s: float = 60.0,
    epoch: int | None = None,
) -> Prefill:
    return Prefill(
        request_id=RequestId(request_id),
        epoch=to.address.epoch if epoch is None else epoch,
        tokens=pack_tokens(prompt),
        sampling=sampling(max_tokens, stop),
        cache=CacheScope(salt=SALT),
        decode=decode,
        deadline_s=deadline_s,
    )


def decode_frame(
    request_id: str,
    to: Welcome,
    prompt: list[int],
    max_tokens: int,
    *,
    prefill: Address,
    endpoint: str,
    stop: tuple[int, ...] = (),
    deadline_s: float = 60.0,
) -> Decode:
    return Decode(
        request_id=RequestId(request_id),
        epoch=to.address.epoch,
        tokens=pack_tokens(prompt),
        sampling=sampling(max_tokens, stop),
        cache=CacheScope(salt=SALT),
        prefill=prefill,
        prefill_endpoint=protocol.Endpoint(endpoint),
        deadline_s=deadline_s,
    )


@dataclass
class Pair:
    """A prefill and a decode worker, and this gateway's connections to them."""

    prefill: Client
    decode: Client
    prefill_endpoint: str

    def start(
        self,
        request_id: str,
        prompt: list[int],
        max_tokens: int,
        *,
        stop: tuple[int, ...] = (),
        decode_first: bool = True,
        deadline_s: float = 60.0,
    ) -> None:
        frames = [
            lambda: self.decode.send(
                decode_frame(
                    request_id, self.decode.welcome, prompt, max_tokens, prefill=self.prefill.welcome.address,
                    endpoint=self.prefill_endpoint, stop=stop, deadline_s=deadline_s,
                )
            ),
            lambda: self.prefill.send(
                prefill_frame(
                    request_id, self.prefill.welcome, prompt, max_tokens, decode=self.decode.welcome.address, stop=stop,
                    deadline_s=deadline_s,
                )
            ),
        ]  # fmt: skip
        for send in frames if decode_first else reversed(frames):
            send()

    def cancel(self, request_id: str) -> None:
        for client in (self.decode, self.prefill):
            client.send(Cancel(request_id=RequestId(request_id)))

    def tokens(self, request_id: str) -> list[int]:
        """Both workers' tokens in order of their index."""
        both = self.prefill.about(request_id).tokens | self.decode.about(request_id).tokens
        return [both[index] for index in sorted(both)]

    async def finished(self, request_id: str, timeout_s: float = 60.0) -> list[int]:
        prefill, decode = self.prefill.about(request_id), self.decode.about(request_id)
        waiters = [
            asyncio.create_task(self.prefill.until(lambda: prefill.ended, timeout_s)),
            asyncio.create_task(self.decode.until(lambda: decode.ended, timeout_s)),
        ]
        try:
            done, _ = await asyncio.wait(waiters, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for waiter in waiters:
                waiter.cancel()
            await asyncio.gather(*waiters, return_exceptions=True)
        for waiter in done:
            waiter.result()
        assert prefill.failed is None, prefill.failed
        assert decode.failed is None, decode.failed
        return self.tokens(request_id)

    async def idle(self) -> None:
        """Nothing is held on either side."""
        for client in (self.prefill, self.decode):
            await client.status_where(
                lambda s: not (s.running or s.waiting or s.transfers or s.blocks_used), timeout_s=60.0
            )


def assert_cancelled(pair: Pair, request_id: str) -> None:
    """No failure is told, unless a worker heard of the cancel from its peer before it did from the gateway."""
    for client in (pair.prefill, pair.decode):
        failed = client.about(request_id).failed
        assert failed is None or failed.code is ErrorCode.CANCELLED
