"""A worker without an engine: speaks `workers.protocol` over a unix socket and does what its script says."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from workers.protocol import (
    Address,
    Cancel,
    Decode,
    Endpoint,
    ErrorCode,
    Failed,
    Finish,
    Frame,
    Hello,
    Prefill,
    Refused,
    RequestId,
    Role,
    Scheduled,
    Status,
    TokenDelta,
    TokenLogprobs,
    Tokens,
    Welcome,
    WorkerState,
    encode,
    read_frame,
    unpack_tokens,
)
from workers.spec import WorkerLease

REVISION = "0123456789abcdef" * 4


@dataclass
class Script:
    """What the workers do with every request from now on."""

    tokens: list[int] = field(default_factory=lambda: [1, 2, 3])
    finish: Finish = Finish.STOP
    hit_tokens: int = 0
    delay_s: float = 0.0
    """Between tokens."""
    scheduled_delay_s: float = 0.0
    hang_before: int | None = None
    """Output index before which nothing more comes."""
    fail: ErrorCode | None = None
    """Refused on arrival at prefill."""
    fail_message: str = "scripted"
    fail_retryable: bool = False
    die_before: int | None = None
    """Output index before which the decoding worker drops all its connections, as a killed process does."""


class StubWorker:
    """One role, one socket. `cluster` shares scripts and lets prefill hand a request on to decode."""

    def __init__(self, cluster: StubCluster, name: str, role: Role, *, epoch: int = 1) -> None:
        self.cluster = cluster
        self.address = Address(worker=name, epoch=epoch)
        self.role = role
        self.state = WorkerState.READY
        self.step_age_s = 0.0
        self.waiting_tokens = 0
        self.path = cluster.folder / f"{name}.sock"
        self.received: list[Prefill | Decode | Cancel] = []
        self.arrived = asyncio.Event()
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._requests: dict[RequestId, tuple[Prefill | Decode, asyncio.StreamWriter]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._statuses: asyncio.Task[None] | None = None

    @property
    def lease(self) -> WorkerLease:
        return WorkerLease(
            address=self.address,
            role=self.role,
            node="local",
            deployment=self.cluster.deployment,
            revision=self.cluster.revision,
            model=self.cluster.model,
            endpoint=Endpoint(f"unix:{self.path}"),
            pid=0,
        )

    @property
    def running(self) -> set[RequestId]:
        return set(self._requests)

    def cancelled(self) -> list[RequestId]:
        return [frame.request_id for frame in self.received if isinstance(frame, Cancel)]

    async def start(self) -> StubWorker:
        self._server = await asyncio.start_unix_server(self._serve, self.path)
        self._statuses = asyncio.create_task(self._send_statuses())
        return self

    async def stop(self) -> None:
        """As a killed process: nothing is said, every connection is gone."""
        if self._statuses is not None:
            self._statuses.cancel()
        if self._server is not None:
            self._server.close()
        for task in self._tasks:
            task.cancel()
        for writer in self._writers:
            writer.close()
        self._requests.clear()
        self.path.unlink(missing_ok=True)

    async def restart(self) -> None:
        await self.stop()
        self.address = Address(worker=self.address.worker, epoch=self.address.epoch + 1)
        await self.start()

    # --- serving -------------------------------------------------------------------------------------------------

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            hello = await read_frame(reader)
            assert isinstance(hello, Hello)
            if hello.expect is not None and hello.expect != self.address:
                writer.write(encode(Refused(code=ErrorCode.STALE_EPOCH, message=f"here is {self.address}")))
                return
            writer.write(encode(self._welcome()))
            writer.write(encode(self._status()))
            while (frame := await read_frame(reader)) is not None:
                self._take(frame, writer)
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            self._writers.discard(writer)
            writer.close()

    def _welcome(self) -> Welcome:
        return Welcome(
            address=self.address,
            role=self.role,
            state=self.state,
            model=self.cluster.model,
            revision=self.cluster.revision,
            block_identity="stub",
            block_tokens=16,
            max_context=4096,
            max_queue=64,
        )

    def _status(self) -> Status:
        return Status(
            state=self.state,
            step_age_s=self.step_age_s,
            running=len(self._requests),
            waiting=0,
            waiting_tokens=self.waiting_tokens,
            blocks_total=100,
            blocks_used=0,
            blocks_cached=0,
            transfers=0,
        )

    async def _send_statuses(self) -> None:
        while True:
            await asyncio.sleep(self.cluster.status_interval_s)
            self.say_status()

    def say_status(self) -> None:
        for writer in self._writers:
            writer.write(encode(self._status()))

    def _take(self, frame: Frame, writer: asyncio.StreamWriter) -> None:
        assert isinstance(frame, Prefill | Decode | Cancel), frame
        self.received.append(frame)
        self.arrived.set()
        if isinstance(frame, Cancel):
            self._requests.pop(frame.request_id, None)
            return
        self._requests[frame.request_id] = (frame, writer)
        if isinstance(frame, Prefill):
            self._spawn(self._prefill(frame, writer))

    def _spawn(self, work: object) -> None:
        task = asyncio.create_task(work)  # type: ignore[arg-type]
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _send(self, request_id: RequestId, writer: asyncio.StreamWriter, frame: Frame) -> bool:
        """False where the request was cancelled, or the process "died"."""
        if request_id not in self._requests or writer.is_closing():
            return False
        writer.write(encode(frame))
        return True

    async def _prefill(self, frame: Prefill, writer: asyncio.StreamWriter) -> None:
        script = self.cluster.script(frame)
        if script.fail is not None:
            failed = Failed(
                request_id=frame.request_id,
                code=script.fail,
                message=script.fail_message,
                retryable=script.fail_retryable,
            )
            self._send(frame.request_id, writer, failed)
            self._requests.pop(frame.request_id, None)
            return
        await asyncio.sleep(script.scheduled_delay_s)
        prompt = len(unpack_tokens(frame.tokens))
        scheduled = Scheduled(
            request_id=frame.request_id,
            pool_hit_tokens=script.hit_tokens,
            store_hit_tokens=0,
            miss_tokens=prompt - script.hit_tokens,
            queue_s=0.0,
        )
        if not self._send(frame.request_id, writer, scheduled):
            return
        if frame.decode is None:
            await self._emit(frame, writer, script, range(len(script.tokens)))
            return
        await self._emit(frame, writer, script, range(1))
        self.cluster.worker(frame.decode.worker).begin(frame.request_id, script)

    def begin(self, request_id: RequestId, script: Script) -> None:
        """Prefill is done: decode the rest."""
        found = self._requests.get(request_id)
        if found is not None and len(script.tokens) > 1:
            frame, writer = found
            self._spawn(self._emit(frame, writer, script, range(1, len(script.tokens))))

    async def _emit(
        self, frame: Prefill | Decode, writer: asyncio.StreamWriter, script: Script, indices: range
    ) -> None:
        for index in indices:
            await asyncio.sleep(script.delay_s)
            if script.hang_before is not None and index >= script.hang_before:
                return
            if script.die_before is not None and index >= script.die_before:
                await self.stop()
                return
            last = index == min(len(script.tokens), frame.sampling.max_tokens) - 1
            ended = Finish.LENGTH if last and index + 1 < len(script.tokens) else script.finish
            delta = TokenDelta(
                request_id=frame.request_id,
                index=index,
                tokens=[script.tokens[index]],
                finish=ended if last else None,
                logprobs=self._logprobs(frame, script.tokens[index]),
            )
            if not self._send(frame.request_id, writer, Tokens(deltas=[delta])) or last:
                break
        else:
            if frame.sampling.max_tokens > 1 and indices.stop < len(script.tokens):
                self._requests.pop(frame.request_id, None)  # the prefill worker's part
                return
        self._requests.pop(frame.request_id, None)

    @staticmethod
    def _logprobs(frame: Prefill | Decode, token: int) -> list[TokenLogprobs] | None:
        if frame.sampling.logprobs is None:
            return None
        return [TokenLogprobs(-0.5, [(token, -0.5), (token + 1, -1.5)][: frame.sampling.logprobs])]


class StubCluster:
    """Workers of one deployment. `scripts` are used one per attempt, the last for all that follow."""

    def __init__(
        self, folder: Path, *, deployment: str = "tiny", model: str = "tiny-model", status_interval_s: float = 0.05
    ) -> None:
        self.folder = folder
        self.deployment = deployment
        self.model = model
        self.revision = REVISION
        self.status_interval_s = status_interval_s
        self.workers: dict[str, StubWorker] = {}
        self.scripts = [Script()]
        self.choose: Callable[[Prefill], Script] | None = None
        self._names = itertools.count()

    def script(self, frame: Prefill) -> Script:
        if frame.request_id.startswith("probe-"):
            return Script(tokens=[1, 2], finish=Finish.LENGTH)
        if self.choose is not None:
            return self.choose(frame)
        return self.scripts.pop(0) if len(self.scripts) > 1 else self.scripts[0]

    def worker(self, name: str) -> StubWorker:
        return self.workers[name]

    async def add(self, role: Role, *, name: str | None = None) -> StubWorker:
        worker = StubWorker(self, name or f"{role}-{next(self._names)}", role)
        self.workers[worker.address.worker] = worker
        return await worker.start()

    async def stop(self) -> None:
        for worker in self.workers.values():
            await worker.stop()
