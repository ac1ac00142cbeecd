"""`POST /v1/completions`: the legacy protocol, text in and text out, several prompts at once."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from controlplane.inference.errors import invalid
from controlplane.inference.schema import checks
from controlplane.inference.schema.call import Call, Protocol
from controlplane.inference.schema.checks import refuse

IGNORED = frozenset({"user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key"})
DEFAULT_MAX_TOKENS = 16
"""OpenAI's default of this protocol."""


class CompletionBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    model: checks.ModelName
    prompt: str | list[Any]
    stream: bool | None = None
    stream_options: checks.StreamOptions | None = None
    temperature: checks.Temperature | None = None
    top_p: checks.TopP | None = None
    top_k: checks.TopK | None = None
    min_p: checks.MinP | None = None
    presence_penalty: checks.Penalty | None = None
    frequency_penalty: checks.Penalty | None = None
    logit_bias: dict[str, float] | None = None
    max_tokens: checks.Positive | None = None
    stop: str | list[str] | None = None
    seed: checks.Seed | None = None
    n: checks.Positive | None = None
    best_of: checks.Positive | None = None
    logprobs: Annotated[int, Meta(ge=0, le=5)] | None = None
    echo: bool | None = None
    suffix: str | None = None


def parse_completion(body: bytes, *, max_choices: int, max_prompts: int) -> Call:
    """Raises ApiError (400)."""
    asked = checks.convert(checks.decode_object(body, ignored=IGNORED), CompletionBody)
    choices = checks.choices(asked.n, max_choices)
    if asked.suffix:
        raise refuse("suffix")
    if asked.best_of is not None and asked.best_of != choices:
        raise refuse("best_of", "other than `n` is not supported")
    if asked.echo and asked.logprobs is not None:
        raise refuse("echo", "together with `logprobs` is not supported: prompts have no log-probabilities here")
    return Call(
        protocol=Protocol.COMPLETIONS,
        model=asked.model,
        prompts=_prompts(asked.prompt, max_prompts),
        echo=bool(asked.echo),
        stream=bool(asked.stream),
        include_usage=checks.include_usage(asked.stream_options, asked.stream),
        temperature=asked.temperature,
        top_p=asked.top_p,
        top_k=asked.top_k or 0,
        min_p=asked.min_p or 0.0,
        presence_penalty=asked.presence_penalty or 0.0,
        frequency_penalty=asked.frequency_penalty or 0.0,
        logit_bias=checks.logit_bias(asked.logit_bias),
        max_tokens=asked.max_tokens or DEFAULT_MAX_TOKENS,
        stop=checks.stops(asked.stop),
        seed=asked.seed,
        choices=choices,
        logprobs=asked.logprobs,
    )


def _prompts(prompt: str | list[Any], most: int) -> tuple[str | list[int], ...]:
    """A text, token ids, or a list of either."""
    if isinstance(prompt, str):
        return (prompt,)
    if not prompt:
        raise invalid("`prompt` must not be empty.", param="prompt", code="invalid_value")
    if all(_is_id(item) for item in prompt):
        return (prompt,)
    if len(prompt) > most:
        raise invalid(f"`prompt` takes at most {most} prompts.", param="prompt")
    for index, item in enumerate(prompt):
        ids = isinstance(item, list) and item and all(_is_id(token) for token in item)
        if not (isinstance(item, str) or ids):
            raise invalid(
                "A prompt must be a string or a list of token ids.", param=f"prompt[{index}]", code="invalid_value"
            )
    return tuple(prompt)


def _is_id(item: Any) -> bool:
    return isinstance(item, int) and not isinstance(item, bool)
