"""The engine's own thread: load, then commands, one step, hand over what it made, again.

The event loop talks to it through a queue of calls; it talks back with at most one hand-over per step (and one per
batch of calls), so tokens cost no thread switch each.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from workers.engine.api import EngineStats, StepOutput
from workers.identity import CacheIdentity
from workers.kvstore.store import Store
from workers.snapshots import Histogram
from workers.transfer.base import ServedEngine

logger = logging.getLogger(__name__)
T = TypeVar("T")

IDLE_TURN_S = 0.25
"""The loop turns at least this often, so that its age tells a hang from idleness."""
EMPTY_STEP_PAUSE_S = 0.002
"""Pause after a step that had nothing to compute although requests are there (they wait for credit)."""


@dataclass(slots=True, frozen=True)
class Loaded:
    engine: ServedEngine
    block_identity: str
    """Fingerprint of what its blocks mean; only equal ones exchange blocks."""
    max_context: int
    identity: CacheIdentity | None = None
    """What the fingerprint is of: whoever names blocks outside the engine (pins) starts from it."""
    store: Store | None = None


class EngineEvents(Protocol):
    """Called on the event loop."""

    def engine_ready(self, loaded: Loaded) -> None: ...

    def engine_output(self, output: StepOutput) -> None: ...

    def engine_died(self, error: BaseException) -> None:
        """Loading failed, or a step raised: this process cannot serve any more."""


@dataclass(slots=True)
class _Call:
    function: Callable[[ServedEngine], Any]
    future: asyncio.Future[Any] | None


@dataclass(slots=True)
class _Answer:
    future: asyncio.Future[Any]
    result: Any
    error: Exception | None


class EngineThread:
    """Implements `EngineCalls`. `load` runs on the thread, so the process answers greetings meanwhile."""

    def __init__(self, load: Callable[[], Loaded], events: EngineEvents) -> None:
        self._load = load
        self._events = events
        self._loop = asyncio.get_running_loop()
        self._calls: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._stopping = False
        self._turned_at: float | None = None
        self._checked = True
        self.stats: EngineStats | None = None
        """As of the last turn; a hung engine leaves it as it was."""
        self.step_s = Histogram()
        self.conservation_failures = 0
        self.call_faults = 0

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout_s: float) -> bool:
        """Ask the thread to end and wait for the step that runs. False when it did not end in time."""
        self._stopping = True
        self._calls.put(None)
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    @property
    def step_age_s(self) -> float:
        """Seconds since the loop last came round; 0 while the model loads."""
        turned_at = self._turned_at
        return 0.0 if turned_at is None else time.monotonic() - turned_at

    @property
    def queued_calls(self) -> int:
        """Bounded by the worker's bound on requests: each has at most a few calls under way."""
        return self._calls.qsize()

    def call(self, function: Callable[[ServedEngine], T]) -> asyncio.Future[T]:
        future: asyncio.Future[T] = self._loop.create_future()
        self._calls.put(_Call(function, future))
        return future

    def post(self, function: Callable[[ServedEngine], object]) -> None:
        self._calls.put(_Call(function, None))

    # --- on the engine's thread ------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            loaded = self._load()
            self._turned_at = time.monotonic()
            self.stats = loaded.engine.stats()
            self._hand_over(self._events.engine_ready, loaded)
            self._serve(loaded.engine)
        except BaseException as error:  # noqa: BLE001 - the end of this process: told, logged, and it exits
            self._hand_over(self._events.engine_died, error)

    def _serve(self, engine: ServedEngine) -> None:
        pause = IDLE_TURN_S
        while not self._stopping:
            self._answer_calls(engine, pause)
            self._turned_at = time.monotonic()
            busy = engine.has_work()
            output = engine.step()
            made = bool(
                output.deltas or output.blocks or output.prefilled or output.failed
                or output.scheduled or output.wants_credit
            )  # fmt: skip
            stepped = self._note(engine)
            if made:
                self._hand_over(self._events.engine_output, output)
            if made or stepped:
                self._checked = False
                pause = 0.0
            elif busy:
                pause = EMPTY_STEP_PAUSE_S
            else:
                self._check(engine)
                pause = IDLE_TURN_S

    def _answer_calls(self, engine: ServedEngine, pause: float) -> None:
        """Run what is queued; with nothing queued wait up to `pause` for the first."""
        answers: list[_Answer] = []
        try:
            call = self._calls.get(timeout=pause) if pause else self._calls.get_nowait()
            while call is not None:
                self._run_call(engine, call, answers)
                call = self._calls.get_nowait()
        except queue.Empty:
            pass
        if answers:
            self._hand_over(_resolve, answers)

    def _run_call(self, engine: ServedEngine, call: _Call, answers: list[_Answer]) -> None:
        result, error = None, None
        try:
            result = call.function(engine)
        except Exception as caught:  # one request's call must not end everybody's engine
            error = caught
            if call.future is None:
                self.call_faults += 1
                logger.exception("a call into the engine failed")
        if call.future is not None:
            answers.append(_Answer(call.future, result, error))

    def _note(self, engine: ServedEngine) -> bool:
        """Refresh the statistics; true when a forward pass ran since the last look."""
        now = time.monotonic()
        before = self.stats
        stats = engine.stats()
        stepped = before is not None and stats.steps != before.steps
        if stepped and self._turned_at is not None:
            self.step_s.observe(now - self._turned_at)
        self.stats = stats
        return stepped

    def _check(self, engine: ServedEngine) -> None:
        """Once after each busy period, as nothing else is to do."""
        if self._checked:
            return
        self._checked = True
        try:
            engine.check_conservation()
        except AssertionError:
            self.conservation_failures += 1
            logger.exception("blocks are not conserved", extra={"fields": {"stats": str(self.stats)}})

    def _hand_over(self, callback: Callable[[Any], None], argument: object) -> None:
        try:
            self._loop.call_soon_threadsafe(callback, argument)
        except RuntimeError:  # the loop is closed: the process is ending and nobody listens any more
            self._stopping = True


def _resolve(answers: list[_Answer]) -> None:
    for answer in answers:
        if answer.future.cancelled():
            continue
        if answer.error is not None:
            answer.future.set_exception(answer.error)
        else:
            answer.future.set_result(answer.result)
