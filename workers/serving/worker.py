"""A worker process's event loop: puts the parts together, reports once a second, drains, ends with an exit code."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import threading
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from workers.constraints import Grammars
from workers.engine.api import StepOutput
from workers.manifest import ModelManifest
from workers.network.endpoints import host_id
from workers.network.tls import Contexts
from workers.protocol import Address, Endpoint, ErrorCode, RequestId, Role, Welcome, WorkerState
from workers.serving import counters as counting
from workers.serving.desk import Desk, Transfer
from workers.serving.engine_thread import EngineThread, Loaded
from workers.serving.errors import EXIT_BAD_SPEC, EXIT_CRASHED, EXIT_DRAINED, BadSpec
from workers.serving.listener import Listener
from workers.serving.publisher import Publisher
from workers.serving.requests import Requests
from workers.serving.store_reports import store_events, store_gauges, troubles
from workers.snapshots import WorkerSnapshot
from workers.spec import WorkerSpec
from workers.transfer.deadlines import Deadlines
from workers.transfer.holder import Holder
from workers.transfer.links import Expected, Links
from workers.transfer.puller import PullCounters, Puller
from workers.transfer.shared_memory import SharedMemory
from workers.transfer.tcp.owner import BlockOwner
from workers.transfer.tcp.transport import Tcp, Transports

logger = logging.getLogger(__name__)

STOP_DEADLINE_S = 3.0
"""From the decision to end to the end: the step that runs, the last frames, the lease."""

STORE_DEADLINE_S = 5.0
"""After that, what waits to be written to the KV store is given up."""


class Worker:
    def __init__(
        self,
        spec: WorkerSpec,
        manifest: ModelManifest,
        load: Callable[[], Loaded],
        deadlines: Deadlines | None = None,
    ) -> None:
        self.spec = spec
        self.manifest = manifest
        self.deadlines = deadlines or Deadlines()
        self.state = WorkerState.LOADING
        self.counters = counting.Counters(block_tokens=manifest.block_tokens)
        self.engine = EngineThread(load, self)
        bound = spec.engine.max_queue + 2 * spec.engine.max_running
        self.requests = Requests(bound, self.counters)
        grammars = Grammars(Path(spec.model_path), eos_token_ids=manifest.eos_token_ids, vocab_size=manifest.vocab_size)
        self.desk = Desk(spec, self.engine, self.requests, self.counters, lambda: self.state, grammars)
        self._loop = asyncio.get_running_loop()
        security, contexts = spec.network.security, Contexts(spec.network.security)
        self.shared_memory = SharedMemory()
        blocks = BlockOwner(spec.address, spec.endpoint, security, contexts, self.deadlines, self._blocks_read)
        self._tcp = Tcp(security, contexts, self.deadlines, blocks, spec.network.transfer, self.shared_memory)
        self.transport = Transports(self.shared_memory, self._tcp)
        self.listener = Listener(
            spec,
            self.deadlines,
            self.desk,
            self.transport,
            blocks,
            contexts,
            self.welcome,
            lambda: counting.status(self.moment()),
        )
        self.listener.on_drain = self._asked_to_drain
        self.publisher = Publisher(spec, self.snapshot, self.requests.ended)
        self._loaded: Loaded | None = None
        self._seq = 0
        self._exit: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._drain: asyncio.Task[None] | None = None
        self._reported_at = self._swept_at = time.monotonic()

    # --- life ------------------------------------------------------------------------------------------------

    async def run(self) -> int:
        """Serve until drained, told to stop, or broken; the process's exit code."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._signalled)
        await self.listener.start()
        logger.info("listening", extra={"fields": {"endpoint": self.spec.endpoint, "role": self.spec.role}})
        self.engine.start()
        loops = [
            asyncio.create_task(self._guard(name, work()))
            for name, work in (("status", self._report), ("sweep", self._sweep), ("publish", self.publisher.run))
        ]
        code = await self._exit
        await self._end(loops)
        return code

    def drain(self, deadline_s: float) -> None:
        """Take nothing new, finish what runs, then end. A second call ends at once."""
        if self._drain is not None:
            self._finish(EXIT_DRAINED)
            return
        self.state = WorkerState.DRAINING
        self._drain = asyncio.create_task(self._guard("drain", self._drained(deadline_s)))
        self.listener.announce()

    async def _drained(self, deadline_s: float) -> None:
        logger.info("draining", extra={"fields": {"requests": len(self.requests.live), "deadline_s": deadline_s}})
        try:
            async with asyncio.timeout(deadline_s):
                await self.requests.empty.wait()
        except TimeoutError:
            pass
        cut = list(self.requests.live.values())
        for entry in cut:
            self.desk.cut(entry, ErrorCode.NOT_READY, "this worker was stopped")
        logger.info("drained", extra={"fields": {"cut": len(cut)}})
        self._finish(EXIT_DRAINED)

    async def _end(self, loops: list[asyncio.Task[None]]) -> None:
        for task in loops:
            task.cancel()
        await asyncio.gather(*loops, return_exceptions=True)
        await self.publisher.withdraw()
        if self.desk.transfer is not None:
            await self.desk.transfer.links.close()
        await self.listener.close(STOP_DEADLINE_S)
        self.shared_memory.close()
        if not self.engine.stop(STOP_DEADLINE_S):
            logger.warning("the engine's step did not end in time")
        if self._loaded is not None and self._loaded.store is not None:
            # A thread that nobody waits for at the process's end: a dead mount may keep it for ever.
            closing = threading.Thread(target=self._loaded.store.close, args=(STORE_DEADLINE_S,), daemon=True)
            closing.start()
            await asyncio.to_thread(closing.join, STORE_DEADLINE_S)

    def _signalled(self) -> None:
        self.drain(self.spec.drain_deadline_s)

    def _asked_to_drain(self, deadline_s: float) -> None:
        if self._drain is None:
            self.drain(deadline_s)

    def _finish(self, code: int) -> None:
        if not self._exit.done():
            self._exit.set_result(code)

    async def _guard(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        """A background loop that ends with an exception takes the process with it: the agent starts a sound one."""
        try:
            await work
        except Exception:
            logger.exception("background loop failed", extra={"fields": {"loop": name}})
            self._finish(EXIT_CRASHED)
            raise

    def _blocks_read(self, peer: Address, request_id: RequestId) -> None:
        """On a thread that sends blocks."""

        def note() -> None:
            if self.desk.transfer is not None:
                self.desk.transfer.holder.reading(peer, request_id)

        with contextlib.suppress(RuntimeError):  # the loop has ended, and with it what would have waited
            self._loop.call_soon_threadsafe(note)

    # --- the engine (EngineEvents) ---------------------------------------------------------------------------

    def engine_ready(self, loaded: Loaded) -> None:
        self._loaded = loaded
        arena = loaded.engine.arena
        puller = Puller(self.engine, self.desk, self.deadlines, arena, self.manifest.block_tokens)
        expected = Expected(
            revision=self.spec.revision, block_identity=loaded.block_identity, block_bytes=arena.block_bytes
        )
        links = Links(self.spec.address, self.transport.dial, expected, puller, self.deadlines)
        self.listener.arena = arena
        self.desk.transfer = Transfer(Holder(self.engine, self.desk, self.deadlines), puller, links)
        if self.state is WorkerState.LOADING:
            self.state = WorkerState.READY
        logger.info("ready", extra={"fields": {"block_identity": loaded.block_identity}})
        self.listener.announce()

    def engine_output(self, output: StepOutput) -> None:
        self.desk.output(output)

    def engine_died(self, error: BaseException) -> None:
        logger.critical("the engine died: %s", error, exc_info=error)
        for entry in list(self.requests.live.values()):
            self.requests.fail(entry.request_id, ErrorCode.INTERNAL, "the engine failed; this worker starts again")
        self._finish(EXIT_BAD_SPEC if isinstance(error, BadSpec) else EXIT_CRASHED)

    # --- reports ---------------------------------------------------------------------------------------------

    def welcome(self) -> Welcome:
        loaded = self._loaded
        return Welcome(
            address=self.spec.address,
            role=Role(self.spec.role),
            state=self.state,
            model=self.spec.model,
            revision=self.spec.revision,
            block_identity=loaded.block_identity if loaded else "",
            block_tokens=self.manifest.block_tokens,
            max_context=loaded.max_context if loaded else self.spec.engine.max_context or self.manifest.max_context,
            max_queue=self.spec.engine.max_queue,
            host=host_id(),
            local=self._local,
        )

    @property
    def _local(self) -> Endpoint | None:
        """The unix socket of this worker, if it has one."""
        return self.spec.endpoint if self.spec.endpoint.startswith("unix:") else self.spec.network.local

    def moment(self) -> counting.Moment:
        transfer = self.desk.transfer
        return counting.Moment(
            state=self.state,
            reason=self._reason(),
            stats=self.engine.stats or counting.NO_STATS,
            step_age_s=self.engine.step_age_s,
            waiting_here=transfer.puller.waiting if transfer else 0,
            transfers=transfer.transfers if transfer else 0,
        )

    def snapshot(self) -> WorkerSnapshot:
        self._seq += 1
        transfer = self.desk.transfer
        pulled = transfer.puller.counters if transfer else PullCounters()
        store = self._loaded.store.status() if self._loaded and self._loaded.store else None
        events = self.counters.events
        events["conservation_failures"] = self.engine.conservation_failures
        events["engine_call_faults"] = self.engine.call_faults
        events["publish_failures"] = self.publisher.failures
        events["stale_blocks"], events["failed_pulls"] = pulled.stale_blocks, pulled.failed
        events["pull_faults"], events["damaged_blocks"] = pulled.faults, self._tcp.damaged_blocks
        events.update(store_events(store))
        return counting.snapshot(
            self.spec,
            self.counters,
            self.moment(),
            seq=self._seq,
            step_s=self.engine.step_s,
            transferred_blocks=pulled.transferred_blocks,
            skipped_blocks=pulled.skipped_blocks,
            gauges=self._gauges() | (transfer.gauges() if transfer else {}) | store_gauges(store),
            store_troubles=troubles(store),
            cache_identity=self._loaded.identity if self._loaded else None,
        )

    def _gauges(self) -> dict[str, float]:
        now = time.monotonic()
        return self.listener.gauges() | {
            "queue.calls": float(self.engine.queued_calls),
            "queue.requests": float(len(self.requests.live)),
            "age.status_s": now - self._reported_at,
            "age.sweep_s": now - self._swept_at,
            "age.publish_s": now - self.publisher.turned_at,
        }

    def _reason(self) -> str:
        match self.state:
            case WorkerState.LOADING:
                return f"loading {self.spec.model}"
            case WorkerState.DRAINING:
                return f"{len(self.requests.live)} requests are to be finished"
            case WorkerState.READY:
                return ""

    async def _report(self) -> None:
        while True:
            self._reported_at = time.monotonic()
            self.listener.announce()
            await asyncio.sleep(self.spec.heartbeat_s)

    async def _sweep(self) -> None:
        while True:
            self._swept_at = time.monotonic()
            if self.desk.transfer is not None:
                self.desk.transfer.sweep()
            self.desk.sweep()
            self.listener.sweep()
            await asyncio.sleep(self.deadlines.sweep_s)
