"""What every protocol's reply knows, and what a format has to be able to write."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec

from controlplane.inference import sse
from controlplane.inference.completion import Completion, Update
from controlplane.inference.errors import ApiError
from controlplane.inference.schema.call import Call
from controlplane.inference.tokenization import ModelTokenizer
from controlplane.inference.tool_text import ToolDelta
from workers.protocol import TokenLogprobs

_encoder = msgspec.json.Encoder()


def encode(body: Any) -> bytes:
    return _encoder.encode(body)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What every part of one reply says the same of."""

    id: str
    """Without the protocol's prefix."""
    created: int
    call: Call
    tokenizer: ModelTokenizer
    thinking: bool
    keepalive_s: float
    prompt_texts: tuple[str, ...] = ()
    """Of legacy completions that echo their prompts."""


@dataclass(slots=True)
class ToolCall:
    id: str
    name: str
    arguments: str = ""


@dataclass(slots=True)
class Answer:
    """One choice, gathered."""

    content: str = ""
    reasoning: str = ""
    tools: list[ToolCall] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    finish_reason: str | None = None
    stop_sequence: str | None = None

    def take(self, update: Update) -> None:
        self.content += update.content
        self.reasoning += update.reasoning
        for delta in update.tools:
            self._tool(delta)
        if update.logprobs is not None:
            self.tokens += update.tokens
            self.logprobs += update.logprobs
        self.finish_reason = update.finish_reason or self.finish_reason
        self.stop_sequence = update.stop_sequence or self.stop_sequence

    def _tool(self, delta: ToolDelta) -> None:
        if delta.index == len(self.tools):
            self.tools.append(ToolCall(delta.id, delta.name))
        self.tools[delta.index].arguments += delta.arguments


class ReplyFormat(Protocol):
    """Writes one reply. A stream is `begin`, `update`s, `end`; or it breaks off with `error`."""

    keep_alive: bytes

    def begin(self, completion: Completion) -> bytes:
        """Called when the prefill of the request has started: what was cached is known."""

    def update(self, completion: Completion, update: Update) -> bytes: ...

    def end(self, completion: Completion) -> bytes: ...

    def error(self, error: ApiError) -> bytes: ...

    def whole(self, completion: Completion, answers: Sequence[Answer]) -> bytes:
        """The body of a reply that is not streamed."""


def fingerprint(revision: str) -> str:
    """Stable as long as model, settings and numerics are: it is the revision's hash."""
    return f"fp_{revision[:16]}"


def spelled(tokenizer: ModelTokenizer, token: int) -> bytes:
    return tokenizer.spellings[token] if 0 <= token < tokenizer.vocab_size else b""


def finite(logprob: float) -> float:
    """JSON knows no infinity; OpenAI's stand-in."""
    return max(logprob, -9999.0)


def named_event(name: str, body: Any) -> bytes:
    return b"event: " + name.encode() + b"\n" + sse.event(encode(body))
