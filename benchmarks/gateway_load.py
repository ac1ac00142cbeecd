"""Both ends of the gateway's benchmark: clients that read streams with little effort, and a stub in OpenAI's shape."""

from __future__ import annotations

import asyncio
import json
import statistics
import time
from dataclasses import dataclass, field
from urllib.parse import urlsplit

TOKENS = 50
"""Of each answer, one event each."""
PROMPT = "kitchen " * 300


@dataclass
class Load:
    """What the clients of one run saw."""

    ttft_s: list[float] = field(default_factory=list)
    events: int = 0
    requests: int = 0
    failed: int = 0
    seconds: float = 0.0

    def ttft_ms(self, fraction: float) -> float:
        if len(self.ttft_s) < 2:
            return float("nan")
        return statistics.quantiles(self.ttft_s, n=1000)[round(fraction * 1000) - 1] * 1000

    @property
    def rate(self) -> float:
        """Complete streams a second."""
        return self.requests / self.seconds if self.seconds else 0.0


class Client:
    """One kept connection; raw sockets, because an HTTP library would be the bottleneck."""

    def __init__(self, url: str, key: str, model: str) -> None:
        parts = urlsplit(url)
        self._host, self._port = parts.hostname or "", parts.port or 80
        body = json.dumps(
            {"model": model, "stream": True, "max_tokens": TOKENS, "messages": [{"role": "user", "content": PROMPT}]}
        ).encode()
        head = (
            f"POST {parts.path.rstrip('/')}/v1/chat/completions HTTP/1.1\r\nhost: {self._host}:{self._port}\r\n"
            f"authorization: Bearer {key}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        self._request = head.encode() + body
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, load: Load) -> None:
        started = time.perf_counter()
        try:
            if self._streams is None:
                self._streams = await asyncio.open_connection(self._host, self._port)
            reader, writer = self._streams
            writer.write(self._request)
            head = await reader.readuntil(b"\r\n\r\n")
            first, events, tail = 0.0, 0, b""
            while not tail.endswith(b"0\r\n\r\n"):
                part = await reader.read(65536)
                if not part:
                    raise ConnectionError("closed in mid-answer")
                if not first and b'"content":"' in part.replace(b'"content":""', b"").replace(b": ", b":"):
                    first = time.perf_counter() - started
                events += part.count(b"data: {")
                tail = (tail + part)[-16:]
        except (OSError, asyncio.IncompleteReadError):
            load.failed += 1
            self._streams = None
            return
        if b" 200 " not in head[:16] or not first:
            load.failed += 1
            return
        load.ttft_s.append(first)
        load.events += events
        load.requests += 1

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()


async def saturate(url: str, key: str, model: str, *, clients: int, seconds: float) -> Load:
    """Closed loop: each of `clients` asks again as soon as it has its answer."""
    load = Load()
    until = time.perf_counter() + seconds

    async def one() -> None:
        client = Client(url, key, model)
        while time.perf_counter() < until:
            await client.ask(load)
        client.close()

    started = time.perf_counter()
    await asyncio.gather(*(one() for _ in range(clients)))
    load.seconds = time.perf_counter() - started
    return load


async def open_loop(url: str, key: str, model: str, *, rate: float, seconds: float) -> Load:
    """Requests at fixed times, whether or not earlier ones have been answered."""
    load = Load()
    idle: list[Client] = []

    async def one() -> None:
        client = idle.pop() if idle else Client(url, key, model)
        await client.ask(load)
        idle.append(client)

    started = time.perf_counter()
    tasks = []
    for at in range(int(rate * seconds)):
        await asyncio.sleep(max(0.0, started + at / rate - time.perf_counter()))
        tasks.append(asyncio.create_task(one()))
    await asyncio.gather(*tasks)
    load.seconds = time.perf_counter() - started
    for client in idle:
        client.close()
    return load


async def openai_stub(host: str = "127.0.0.1") -> asyncio.Server:
    """Answers every POST with TOKENS events in OpenAI's shape, one write each."""

    def chunk(delta: dict[str, str], finish: str | None = None) -> bytes:
        body = {
            "id": "chatcmpl-stub", "object": "chat.completion.chunk", "created": 1, "model": "stub",
            "choices": [{"index": 0, "delta": delta, "finish_reason": finish}],
        }  # fmt: skip
        data = b"data: " + json.dumps(body).encode() + b"\n\n"
        return f"{len(data):x}\r\n".encode() + data + b"\r\n"

    role, token, end = chunk({"role": "assistant", "content": ""}), chunk({"content": "a"}), chunk({}, "stop")
    done = b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                request = await reader.readuntil(b"\r\n\r\n")
                lines = request.lower().split(b"\r\n")
                length = next((int(line[15:]) for line in lines if line.startswith(b"content-length:")), 0)
                await reader.readexactly(length)
                writer.write(head + role)
                for _ in range(TOKENS):
                    await asyncio.sleep(0)
                    writer.write(token)
                writer.write(end + done)
                await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            writer.close()

    return await asyncio.start_server(serve, host, 0)
