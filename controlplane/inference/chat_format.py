"""The shapes of chat completions: chunks of a stream, whole responses, usage, log-probabilities."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from controlplane.inference.completion import Update, Usage
from controlplane.inference.tokenization import ModelTokenizer


class PromptDetails(msgspec.Struct):
    cached_tokens: int


class CompletionDetails(msgspec.Struct):
    reasoning_tokens: int


class UsageBody(msgspec.Struct):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails
    completion_tokens_details: CompletionDetails
    prompt_cache_hit_tokens: int
    prompt_cache_miss_tokens: int


def usage_body(usage: Usage) -> UsageBody:
    return UsageBody(
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.output_tokens,
        total_tokens=usage.prompt_tokens + usage.output_tokens,
        prompt_tokens_details=PromptDetails(usage.hit_tokens),
        completion_tokens_details=CompletionDetails(usage.reasoning_tokens),
        prompt_cache_hit_tokens=usage.hit_tokens,
        prompt_cache_miss_tokens=usage.miss_tokens,
    )


class TopLogprob(msgspec.Struct):
    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(msgspec.Struct):
    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class LogprobsBody(msgspec.Struct):
    content: list[TokenLogprob]
    refusal: None = None


def logprobs_body(update: Update, tokenizer: ModelTokenizer, alternatives: int) -> LogprobsBody:
    content = []
    for token, reported in zip(update.tokens, update.logprobs or (), strict=False):
        top = [_top(tokenizer, identifier, logprob) for identifier, logprob in reported.top[:alternatives]]
        own = _top(tokenizer, token, reported.logprob)
        content.append(TokenLogprob(own.token, own.logprob, own.bytes, top))
    return LogprobsBody(content)


def _top(tokenizer: ModelTokenizer, token: int, logprob: float) -> TopLogprob:
    raw = tokenizer.spellings[token] if 0 <= token < tokenizer.vocab_size else b""
    return TopLogprob(raw.decode(errors="replace"), max(logprob, -9999.0), list(raw))


class Delta(msgspec.Struct, omit_defaults=True):
    role: str | UnsetType = UNSET
    content: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET


class ChunkChoice(msgspec.Struct):
    index: int
    delta: Delta
    logprobs: LogprobsBody | None = None
    finish_reason: str | None = None


class Chunk(msgspec.Struct, kw_only=True):
    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChunkChoice]
    usage: UsageBody | UnsetType | None = UNSET
    """Absent unless asked for; then null in every chunk but the last."""


class Message(msgspec.Struct):
    role: str
    content: str
    refusal: None = None
    reasoning_content: str | UnsetType = UNSET


class ResponseChoice(msgspec.Struct):
    index: int
    message: Message
    logprobs: LogprobsBody | None
    finish_reason: str | None


class ChatResponse(msgspec.Struct, kw_only=True):
    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    system_fingerprint: str
    choices: list[ResponseChoice]
    usage: UsageBody


class ModelBody(msgspec.Struct, kw_only=True):
    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str
    root: str
    """The model behind the name."""
    max_model_len: int | None


class ModelList(msgspec.Struct, kw_only=True):
    object: Literal["list"] = "list"
    data: list[ModelBody]


def fingerprint(revision: str) -> str:
    """Stable as long as model, settings and numerics are: it is the revision's hash."""
    return f"fp_{revision[:16]}"


_encoder = msgspec.json.Encoder()


def encode(body: Any) -> bytes:
    return _encoder.encode(body)
