"""The body of `POST /v1/chat/completions`, checked: every mistake is a 400 that names its parameter."""

from __future__ import annotations

import re
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from controlplane.inference.errors import ApiError, invalid, unsupported

MAX_STOPS = 16
MAX_STOP_CHARS = 512

Seed = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Positive = Annotated[int, Meta(ge=1, le=2**31 - 1)]

IGNORED = frozenset(
    {
        "metadata",
        "parallel_tool_calls",
        "prediction",
        "prompt_cache_key",
        "prompt_cache_retention",
        "safety_identifier",
        "service_tier",
        "store",
        "user",
        "verbosity",
    }
)
"""Known parameters without influence on what is generated here: accepted, no effect (docs/api.md)."""


class StreamOptions(msgspec.Struct, kw_only=True):
    include_usage: bool = False
    include_obfuscation: bool = False
    """Accepted; nothing is obfuscated."""


class ChatBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    model: Annotated[str, Meta(min_length=1, max_length=256)]
    messages: Annotated[list[dict[str, Any]], Meta(min_length=1)]
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    max_tokens: Positive | None = None
    max_completion_tokens: Positive | None = None
    stop: str | list[str] | None = None
    seed: Seed | None = None
    n: Positive | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    thinking: dict[str, Any] | None = None
    reasoning_effort: str | None = None
    # Refused by name where they would change the output; their neutral values are accepted.
    response_format: dict[str, Any] | None = None
    tools: list[Any] | None = None
    tool_choice: Any = None
    functions: list[Any] | None = None
    function_call: Any = None
    logit_bias: dict[str, Any] | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    modalities: list[str] | None = None
    audio: Any = None
    web_search_options: Any = None


class ChatCall(msgspec.Struct, kw_only=True, frozen=True):
    """A checked request. `messages` have a role that the conversion knows and plain string content."""

    model: str
    messages: list[dict[str, Any]]
    stream: bool
    include_usage: bool
    temperature: float | None
    top_p: float | None
    top_k: int
    min_p: float
    max_tokens: int | None
    stop: tuple[str, ...]
    seed: int | None
    choices: int
    logprobs: int | None
    """Alternatives to report beside each token; None reports nothing."""
    thinking: dict[str, Any] | None
    reasoning_effort: str | None


def parse_chat(body: bytes, *, max_choices: int) -> ChatCall:
    """Raises ApiError (400) for anything that is not a chat completion request we serve."""
    document = _decode(body)
    document = {name: value for name, value in document.items() if name not in IGNORED}
    try:
        chat = msgspec.convert(document, ChatBody)
    except msgspec.ValidationError as error:
        raise _validation_error(error) from error
    _refuse_unserved(chat)
    choices = chat.n or 1
    if choices > max_choices:
        raise invalid(f"`n` must be at most {max_choices}.", param="n")
    if chat.top_logprobs is not None and not chat.logprobs:
        raise invalid("`top_logprobs` needs `logprobs` to be true.", param="top_logprobs")
    if chat.stream_options is not None and not chat.stream:
        raise invalid("`stream_options` is only allowed with `stream`: true.", param="stream_options")
    return ChatCall(
        model=chat.model,
        messages=[_message(index, message) for index, message in enumerate(chat.messages)],
        stream=bool(chat.stream),
        include_usage=chat.stream_options is not None and chat.stream_options.include_usage,
        temperature=chat.temperature,
        top_p=chat.top_p,
        top_k=chat.top_k or 0,
        min_p=chat.min_p or 0.0,
        max_tokens=_max_tokens(chat),
        stop=_stops(chat.stop),
        seed=chat.seed,
        choices=choices,
        logprobs=(chat.top_logprobs or 0) if chat.logprobs else None,
        thinking=chat.thinking,
        reasoning_effort=chat.reasoning_effort,
    )


def _decode(body: bytes) -> dict[str, Any]:
    try:
        document = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise invalid(f"The body is not valid JSON: {error}.", code="invalid_json") from error
    except RecursionError as error:
        raise invalid("The body's JSON is nested too deeply.", code="invalid_json") from error
    if not isinstance(document, dict):
        raise invalid("The body must be a JSON object.", code="invalid_json")
    return document


_PATH = re.compile(r" - at `\$\.?([^`]*)`$")
_UNKNOWN = re.compile(r"unknown field `([^`]*)`")
_MISSING = re.compile(r"missing required field `([^`]*)`")


def _validation_error(error: msgspec.ValidationError) -> ApiError:
    """`Expected int, got str - at `$.seed`` becomes a sentence and a parameter."""
    text = str(error)
    path = _PATH.search(text)
    param = path[1].replace("[...]", "") if path else None
    reason = _PATH.sub("", text)
    if unknown := _UNKNOWN.search(reason):
        name = f"{param}.{unknown[1]}" if param else unknown[1]
        return invalid(f"Unrecognized request argument: `{name}`.", param=name, code="unknown_parameter")
    if missing := _MISSING.search(reason):
        return invalid(
            f"Missing required parameter: `{missing[1]}`.", param=missing[1], code="missing_required_parameter"
        )
    return invalid(f"Invalid value for `{param}`: {reason}.", param=param, code="invalid_value")


def _refuse_unserved(chat: ChatBody) -> None:
    if chat.response_format is not None and chat.response_format.get("type") != "text":
        raise unsupported("response_format")
    if chat.tools:
        raise unsupported("tools")
    if chat.tool_choice not in (None, "none", "auto"):
        raise unsupported("tool_choice")
    if chat.functions:
        raise unsupported("functions", why="is deprecated and not supported")
    if chat.function_call not in (None, "none", "auto"):
        raise unsupported("function_call", why="is deprecated and not supported")
    if chat.logit_bias:
        raise unsupported("logit_bias")
    for name in ("presence_penalty", "frequency_penalty"):
        if getattr(chat, name):
            raise unsupported(name, why="other than 0 is not supported yet")
    if chat.modalities is not None and chat.modalities != ["text"]:
        raise unsupported("modalities", why='other than ["text"] is not supported')
    for name in ("audio", "web_search_options"):
        if getattr(chat, name) is not None:
            raise unsupported(name, why="is not supported")


def _max_tokens(chat: ChatBody) -> int | None:
    both = chat.max_tokens is not None and chat.max_completion_tokens is not None
    if both and chat.max_tokens != chat.max_completion_tokens:
        raise invalid(
            "`max_tokens` and `max_completion_tokens` contradict each other; send one of them.",
            param="max_completion_tokens",
        )
    return chat.max_completion_tokens if chat.max_completion_tokens is not None else chat.max_tokens


def _stops(stop: str | list[str] | None) -> tuple[str, ...]:
    stops = (stop,) if isinstance(stop, str) else tuple(stop or ())
    if len(stops) > MAX_STOPS:
        raise invalid(f"`stop` takes at most {MAX_STOPS} strings.", param="stop")
    for text in stops:
        if not text or len(text) > MAX_STOP_CHARS:
            raise invalid(f"Each string of `stop` must have 1 to {MAX_STOP_CHARS} characters.", param="stop")
    return stops


_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
_LATER_ROLES = {"tool", "function"}


def _message(index: int, message: dict[str, Any]) -> dict[str, Any]:
    """Role, text and continuation flag; other fields (`name`, what SDKs echo from responses) have no effect."""
    where = f"messages[{index}]"
    role = message.get("role")
    if role in _LATER_ROLES or message.get("tool_calls") or message.get("function_call"):
        raise unsupported(f"{where}.role", why="`tool` and messages with tool calls are not supported yet")
    if not isinstance(role, str) or role not in _ROLES:
        raise invalid(
            "A message's role must be one of system, developer, user, assistant.",
            param=f"{where}.role",
            code="invalid_value",
        )
    checked: dict[str, Any] = {"role": _ROLES[role], "content": _content(where, role, message.get("content"))}
    if role == "assistant":
        if isinstance(message.get("reasoning_content"), str):
            checked["reasoning_content"] = message["reasoning_content"]
        if message.get("prefix") is True:
            checked["prefix"] = True
    return checked


def _content(where: str, role: str, content: Any) -> str | list[dict[str, str]]:
    if isinstance(content, str):
        return content
    if content is None and role == "assistant":
        return ""
    if not isinstance(content, list) or not content:
        raise invalid(
            "A message's content must be a string or a list of parts.", param=f"{where}.content", code="invalid_value"
        )
    return [{"type": "text", "text": _part(f"{where}.content[{index}]", part)} for index, part in enumerate(content)]


def _part(where: str, part: Any) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind in ("image_url", "input_image", "image"):
        raise ApiError(400, "Images are not supported by this model.", param=where, code="unsupported_content")
    if kind != "text":
        raise ApiError(400, "Only parts of type `text` are supported.", param=where, code="unsupported_content")
    text = part.get("text")
    if not isinstance(text, str):
        raise invalid("A text part needs a string `text`.", param=f"{where}.text", code="invalid_value")
    return text
