"""One API request: its choices at the workers, what was counted, how it ended. Written for any protocol's responses."""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass, field

import msgspec

from controlplane.inference.admission import Admitted
from controlplane.inference.errors import ApiError, deadline, from_worker, overloaded
from controlplane.inference.events import Output, RequestFailed, Restarted
from controlplane.inference.limits import GatewayLimits
from controlplane.inference.output import NewOutput, OutputParser, Piece
from controlplane.inference.requests import Generation, Work
from controlplane.inference.router import NoWorkers, Router
from controlplane.inference.stats import GatewayStats
from controlplane.inference.tool_text import ToolDelta
from controlplane.metering.events import Counts
from workers.protocol import ErrorCode, Finish, Scheduled, TokenLogprobs

log = logging.getLogger(__name__)

DISCONNECTED = "disconnected"
"""How a request ends whose client left."""
TOOL_CALLS = "tool_calls"
"""How an answer ends that calls tools."""
PLACE_AGAIN_S = 0.1
"""Between two looks for workers, while those of the deployment are on their way back."""
DEADLINE_GRACE_S = 2.0
"""A worker's own word on the deadline is waited for so long."""


@dataclass(slots=True)
class Usage:
    """Disjoint: hit + miss == prompt. Output counts every token used, the one that ended the text included."""

    prompt_tokens: int
    hit_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0

    @property
    def miss_tokens(self) -> int:
        return self.prompt_tokens - self.hit_tokens


@dataclass(slots=True)
class Update:
    """News of one choice. `started`: its prefill began, hits are known. `restarted`: forget what came before."""

    choice: int
    started: bool = False
    restarted: bool = False
    content: str = ""
    reasoning: str = ""
    tools: list[ToolDelta] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] | None = None
    finish_reason: str | None = None
    stop_sequence: str | None = None
    """The stop string that ended the text."""


@dataclass(slots=True)
class _Choice:
    index: int
    generation: Generation
    new_output: NewOutput
    output: OutputParser
    placed: bool = False
    output_tokens: int = 0
    hit_tokens: int | None = None
    store_hit_tokens: int = 0
    """The part of the hits that came from the store."""
    finish_reason: str | None = None

    @property
    def prompt_tokens(self) -> int:
        return len(self.generation.work.tokens)


class Completion:
    """`start`, then `next` until `finished`; `close` in any case. One consumer, one event loop."""

    def __init__(
        self,
        works: list[Work],
        new_output: list[NewOutput],
        *,
        choices: int = 1,
        router: Router,
        limits: GatewayLimits,
        stats: GatewayStats,
        admitted: Admitted,
        accepted: float,
        streaming: bool,
    ) -> None:
        """`works` are `choices` for each prompt, in order; `new_output` makes the parsers of each, one for each try.

        `accepted`: monotonic time of the request's arrival.
        """
        self._wake = asyncio.Event()
        self._choices = [
            _Choice(
                index,
                Generation(work, router=router, limits=limits, wake=self._wake, keep_restartable=not streaming),
                make,
                make(),
            )
            for index, (work, make) in enumerate(zip(works, new_output, strict=True))
        ]
        self._router = router
        self._limits = limits
        self._stats = stats
        self._admitted = admitted
        self._streaming = streaming
        self._accepted = accepted
        self._deadline = works[0].deadline
        self._firsts = self._choices[::choices]
        """The first choice of each prompt: it says what of the prompt was cached."""
        self._work = works[0]
        # Kept up to date rather than summed: asked for with every token.
        self._unplaced = self._unfinished = len(self._choices)
        self._output_tokens = 0
        self._prompt_counts = Counts()
        self._first_token: float | None = None
        self._last_token: float | None = None
        self._ended = False
        self._watchdog: asyncio.TimerHandle | None = None
        stats.waiting += 1

    # --- state ---------------------------------------------------------------------------------------------------

    @property
    def finished(self) -> bool:
        return not self._unfinished

    @property
    def choices(self) -> int:
        """Answers altogether."""
        return len(self._choices)

    @property
    def revision(self) -> str:
        return self._choices[0].generation.revision

    @property
    def usage(self) -> Usage:
        """A prompt counts once, whatever the number of choices; its hits are those of the first choice."""
        return Usage(
            prompt_tokens=sum(choice.prompt_tokens for choice in self._firsts),
            hit_tokens=sum(min(choice.hit_tokens or 0, choice.prompt_tokens) for choice in self._firsts),
            output_tokens=self._output_tokens,
            reasoning_tokens=sum(choice.output.reasoning_tokens for choice in self._choices),
        )

    # --- life ----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Send everything, now or as soon as workers are back. Raises ApiError (503) where none can be expected."""
        self._place()
        # Whatever happens to the consumer (a client that reads nothing blocks it), this ends the request.
        loop = asyncio.get_running_loop()
        seconds = self._deadline - time.monotonic() + 2 * DEADLINE_GRACE_S
        self._watchdog = loop.call_later(seconds, self.close, ErrorCode.DEADLINE.value)

    @property
    def _placed(self) -> bool:
        return not self._unplaced

    def _place(self) -> None:
        """Send what is with no worker yet. Without usable workers `poll` tries again, for `worker_wait_s`."""
        try:
            for choice in self._choices:
                if not choice.placed:
                    choice.generation.start()
                    choice.placed = True
                    self._unplaced -= 1
        except NoWorkers as error:
            waited = time.monotonic() - self._accepted
            if waited < self._limits.worker_wait_s and self._router.expects(self._work.deployment):
                return
            self.close("no_workers")
            log.warning("request %s: no usable workers after %.1f s: %s", self._work.request_id, waited, error)
            raise overloaded("No workers are ready for the model.", retry_after_s=self._limits.retry_after_s) from error

    async def next(self, wait_s: float | None = None) -> Update | None:
        """The next news, or None after `wait_s` seconds without any. Raises ApiError where the request failed."""
        until = self._deadline + DEADLINE_GRACE_S
        if wait_s is not None:
            until = min(until, time.monotonic() + wait_s)
        while True:
            update = self.poll()
            if update is not None:
                return update
            self._wake.clear()
            now = time.monotonic()
            if now >= self._deadline + DEADLINE_GRACE_S:
                self.close(ErrorCode.DEADLINE.value)
                raise deadline(self._limits.deadline_s)
            if now >= until:
                return None
            pause = until - now if self._placed else min(until - now, PLACE_AGAIN_S)
            timer = asyncio.get_running_loop().call_later(pause, self._wake.set)
            try:
                await self._wake.wait()
            finally:
                timer.cancel()

    def close(self, how: str) -> None:
        """Idempotent: cancels what runs on both sides and settles. `how` is the name under which the end is counted."""
        for choice in self._choices:
            choice.generation.close(how)
        if self._ended:
            return
        self._ended = True
        if self._watchdog is not None:
            self._watchdog.cancel()
        if self._last_token is None:
            self._stats.waiting -= 1
        else:
            self._stats.running -= 1
        counts = self._counts()
        hit_tokens = counts.pool_hit + counts.store_hit
        self._stats.hit_tokens += hit_tokens
        self._stats.miss_tokens += counts.miss
        self._stats.output_tokens += counts.output
        self._stats.ended(how)
        now = time.monotonic()
        elapsed = now - self._accepted
        self._stats.e2e_s.observe(elapsed)
        if self._first_token is not None:
            self._stats.decode_s.observe(now - self._first_token)
        self._admitted.settle(self._sent(counts, how), outcome=how)
        log.info(
            "request %s ended: %s, hit %d, miss %d, output %d, %.3f s",
            self._work.request_id, how, hit_tokens, counts.miss, counts.output, elapsed,
        )  # fmt: skip

    def _counts(self) -> Counts:
        """Disjoint classes so far."""
        prompts = self._prompt_counts
        return Counts(
            pool_hit=prompts.pool_hit, store_hit=prompts.store_hit, miss=prompts.miss, output=self._output_tokens
        )

    def _count_prompts(self) -> Counts:
        """Of the prompts alone. Those that never ran have none."""
        ran = [choice for choice in self._firsts if choice.hit_tokens is not None]
        hits = [min(choice.hit_tokens or 0, choice.prompt_tokens) for choice in ran]
        stored = [min(choice.store_hit_tokens, hit) for choice, hit in zip(ran, hits, strict=True)]
        return Counts(
            pool_hit=sum(hits) - sum(stored),
            store_hit=sum(stored),
            miss=sum(choice.prompt_tokens for choice in ran) - sum(hits),
        )

    def _sent(self, counts: Counts, how: str) -> Counts:
        """What the client got, or would have got had he stayed: of a whole reply that failed he got nothing."""
        if self._streaming or self.finished or how == DISCONNECTED:
            return counts
        return msgspec.structs.replace(counts, output=0)

    # --- events --------------------------------------------------------------------------------------------------

    def poll(self) -> Update | None:
        """News that are there already, without waiting. Raises ApiError."""
        if not self._placed and not self._ended:
            self._place()
        for choice in self._choices:
            while (event := choice.generation.poll()) is not None:
                match event:
                    case Scheduled():
                        choice.hit_tokens = event.pool_hit_tokens + event.store_hit_tokens
                        choice.store_hit_tokens = event.store_hit_tokens
                        self._prompt_counts = self._count_prompts()
                        self._check_classes(choice, event)
                        return Update(choice.index, started=True)
                    case Output():
                        return self._output(choice, event)
                    case Restarted():
                        self._output_tokens -= choice.output_tokens
                        choice.output_tokens = 0
                        choice.output = choice.new_output()  # the old one is amid what the first try said
                        return Update(choice.index, restarted=True)
                    case RequestFailed():
                        raise self._failure(event)
        return None

    @staticmethod
    def _check_classes(choice: _Choice, event: Scheduled) -> None:
        total = event.pool_hit_tokens + event.store_hit_tokens + event.miss_tokens
        if total != choice.prompt_tokens:
            log.error("request %s: token classes sum to %d of %d", event.request_id, total, choice.prompt_tokens)

    def _output(self, choice: _Choice, event: Output) -> Update:
        piece = choice.output.push(event.tokens)
        choice.output_tokens += piece.tokens
        self._output_tokens += piece.tokens
        if self._streaming:
            self._admitted.progress(self._counts())
        self._time_tokens(piece.tokens)
        update = Update(choice.index, tokens=event.tokens[: piece.tokens])
        if event.logprobs is not None:
            update.logprobs = event.logprobs[: piece.tokens]
        if piece.stop is not None:
            choice.finish_reason = Finish.STOP.value
            choice.generation.close("stop string")
        elif event.finish is not None:
            rest = choice.output.finish()
            piece = Piece(
                piece.content + rest.content, piece.reasoning + rest.reasoning, piece.tools + rest.tools, stop=rest.stop
            )
            choice.finish_reason = self._finish_reason(choice, event.finish, rest)
        update.content, update.reasoning, update.tools = piece.content, piece.reasoning, piece.tools
        update.finish_reason, update.stop_sequence = choice.finish_reason, piece.stop
        if choice.finish_reason is not None:
            self._unfinished -= 1
        if self.finished:
            self.close(choice.finish_reason or Finish.STOP.value)
        return update

    @staticmethod
    def _finish_reason(choice: _Choice, finish: Finish, rest: Piece) -> str:
        """Calls that were cut off by the limit end with `length`: their arguments are no whole JSON."""
        if rest.stop is not None:
            return Finish.STOP.value
        return TOOL_CALLS if finish is Finish.STOP and choice.output.tool_calls else finish.value

    def _time_tokens(self, count: int) -> None:
        now = time.monotonic()
        if self._last_token is None:
            self._first_token = now
            self._stats.ttft_s.observe(now - self._accepted)
            self._stats.waiting -= 1
            self._stats.running += 1
        elif count:
            self._stats.tokens_sent(count, now - self._last_token)
        self._last_token = now

    def _failure(self, event: RequestFailed) -> ApiError:
        self.close(event.code.value)
        return from_worker(
            event.code, event.message, retry_after_s=self._limits.retry_after_s, deadline_s=self._limits.deadline_s
        )
