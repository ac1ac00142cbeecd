"""Driving prefill engines with the prompts of a trace, and the speed of prompts of which nothing is cached."""

from __future__ import annotations

import argparse
import itertools
import time
from dataclasses import dataclass

from benchmarks.trace_ceiling import Shape
from benchmarks.trace_sessions import Prompts
from benchmarks.traces import Trace
from workers.engine.api import EngineRequest, ScheduledEvent
from workers.engine.engine import Engine
from workers.identity import BlockHash, CacheIdentity, chain, root_hash
from workers.protocol import RequestId, Sampling


@dataclass(slots=True)
class Played:
    """A request on its way through an engine."""

    session: int
    tokens: list[int]
    chain: list[BlockHash]
    submitted: float
    engine: int
    event: ScheduledEvent | None = None
    ttft_s: float = 0.0


class Runner:
    """Steps engines and notes what they say."""

    def __init__(self, engines: list[Engine], identity: CacheIdentity) -> None:
        self._engines = engines
        self._identity = identity
        self._numbers = itertools.count()
        self.live: dict[RequestId, Played] = {}

    def submit(self, engine: int, session: int, tokens: list[int], salt: bytes, retention_class: str) -> Played:
        hashes = chain(root_hash(self._identity, salt), tokens, self._identity.block_tokens)
        now = time.monotonic()
        played = Played(session, tokens, hashes, now, engine)
        request_id = RequestId(f"r{next(self._numbers)}")
        self.live[request_id] = played
        request = EngineRequest(
            request_id=request_id,
            tokens=tokens,
            sampling=Sampling(temperature=0.0, max_tokens=2),
            salt=salt,
            retention_class=retention_class,
            arrived=now,
            deadline=float("inf"),
        )
        self._engines[engine].submit(request, hold=True)
        return played

    def step(self) -> list[Played]:
        """One step of each engine; the requests whose prompt is complete."""
        done: list[Played] = []
        for engine in self._engines:
            if not engine.has_work():
                continue
            out = engine.step()
            assert not out.failed, out.failed
            for request_id in out.wants_credit:
                engine.grant(request_id)
            for event in out.scheduled:
                self.live[event.request_id].event = event
            for prefilled in out.prefilled:
                played = self.live.pop(prefilled.request_id)
                played.ttft_s = time.monotonic() - played.submitted
                engine.release(prefilled.request_id)
                done.append(played)
        return done


class ColdRuns:
    """Prompts of which nothing is cached: layer-rows, tokens and the time they took."""

    def __init__(
        self,
        trace: Trace,
        arguments: argparse.Namespace,
        engine: Engine,
        identity: CacheIdentity,
        shape: Shape,
        prompts: Prompts,
    ) -> None:
        self._requests = trace.requests
        self._count = min(arguments.cold_requests, len(trace.requests))
        self._runner = Runner([engine], identity)
        self._class, self._shape, self._prompts = trace.retention_class, shape, prompts
        self._done = 0
        self.rows = self.tokens = 0
        self.seconds = self.cpu_s = 0.0
        self._play(prompts.of(trace.requests[0])[:64], b"warm-up")

    def _at(self) -> int:
        """How many requests are done when the next cold one runs, which is that one."""
        return (2 * self._done + 1) * len(self._requests) // (2 * self._count)

    def due(self, finished: int) -> bool:
        return self._done < self._count and finished >= self._at()

    def run(self) -> float:
        """The next cold prompt; seconds."""
        tokens = self._prompts.of(self._requests[self._at()])
        began, began_cpu = time.monotonic(), time.process_time()
        self._play(tokens, b"cold %d" % self._done)
        took = time.monotonic() - began
        self.seconds += took
        self.cpu_s += time.process_time() - began_cpu
        self.rows += self._shape.cold(len(tokens))
        self.tokens += len(tokens)
        self._done += 1
        return took

    def _play(self, tokens: list[int], salt: bytes) -> None:
        self._runner.submit(0, -1, tokens, salt, self._class)
        while self._runner.live:
            self._runner.step()
