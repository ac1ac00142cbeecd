"""`POST /v1/chat/completions`."""

from __future__ import annotations

from typing import Any

import msgspec

from controlplane.inference.errors import invalid
from controlplane.inference.schema import checks
from controlplane.inference.schema.call import Call, Protocol
from controlplane.inference.schema.checks import refuse

IGNORED = frozenset(
    {
        "metadata",
        "moderation",
        "prediction",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        "safety_identifier",
        "service_tier",
        "store",
        "user",
        "verbosity",
    }
)
"""Known parameters without influence on what is generated here: accepted, no effect (docs/api.md)."""


class ChatBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    model: checks.ModelName
    messages: list[dict[str, Any]]
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
    max_completion_tokens: checks.Positive | None = None
    stop: str | list[str] | None = None
    seed: checks.Seed | None = None
    n: checks.Positive | None = None
    logprobs: bool | None = None
    top_logprobs: checks.TopLogprobs | None = None
    thinking: dict[str, Any] | None = None
    reasoning_effort: str | None = None
    response_format: dict[str, Any] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    # Refused by name where they ask for anything.
    functions: list[Any] | None = None
    function_call: Any = None
    modalities: list[str] | None = None
    audio: Any = None
    web_search_options: Any = None


def parse_chat(body: bytes, *, max_choices: int) -> Call:
    """Raises ApiError (400) for anything that is not a chat completion request we serve."""
    chat = checks.convert(checks.decode_object(body, ignored=IGNORED), ChatBody)
    _refuse_unserved(chat)
    if not chat.messages:
        raise invalid("`messages` must hold at least one message.", param="messages", code="invalid_value")
    if chat.top_logprobs is not None and not chat.logprobs:
        raise invalid("`top_logprobs` needs `logprobs` to be true.", param="top_logprobs")
    checks.check_tools(chat.tools)
    return Call(
        protocol=Protocol.CHAT,
        model=chat.model,
        body=_conversation(chat),
        stream=bool(chat.stream),
        include_usage=checks.include_usage(chat.stream_options, chat.stream),
        temperature=chat.temperature,
        top_p=chat.top_p,
        top_k=chat.top_k or 0,
        min_p=chat.min_p or 0.0,
        presence_penalty=chat.presence_penalty or 0.0,
        frequency_penalty=chat.frequency_penalty or 0.0,
        logit_bias=checks.logit_bias(chat.logit_bias),
        max_tokens=_max_tokens(chat),
        stop=checks.stops(chat.stop),
        seed=chat.seed,
        choices=checks.choices(chat.n, max_choices),
        logprobs=(chat.top_logprobs or 0) if chat.logprobs else None,
        wants_thinking=_wants_thinking(chat),
        parallel_tools=chat.parallel_tool_calls is not False,
        answer_schema=_answer_schema(chat),
        strict_answer=bool(((chat.response_format or {}).get("json_schema") or {}).get("strict")),
    )


def _conversation(chat: ChatBody) -> dict[str, Any]:
    """The parts of the body that make the prompt, for the conversion."""
    body: dict[str, Any] = {"messages": [_message(index, message) for index, message in enumerate(chat.messages)]}
    if chat.tools:
        body["tools"] = chat.tools
        if chat.tool_choice is not None:
            body["tool_choice"] = chat.tool_choice
    elif chat.tool_choice not in (None, "none", "auto"):
        raise invalid("`tool_choice` needs `tools`.", param="tool_choice")
    if chat.response_format is not None:
        wanted = _response_format(chat.response_format)
        if not chat.tools:  # beside tools it is `_answer_schema`
            body["response_format"] = wanted
    for name in ("thinking", "reasoning_effort"):
        if (value := getattr(chat, name)) is not None:
            body[name] = value
    return body


def _response_format(wanted: dict[str, Any]) -> dict[str, Any]:
    """`json_object` is any object: the mask sees to it, so the prompt need not say `json`."""
    match wanted.get("type"):
        case "json_object":
            return {"type": "json_schema", "json_schema": {"name": "object", "schema": {"type": "object"}}}
        case "json_schema" if not isinstance(wanted.get("json_schema"), dict):
            raise invalid(
                "`response_format.json_schema` must be an object with `name` and `schema`.",
                param="response_format.json_schema",
                code="invalid_value",
            )
        case "text" | "json_schema" | "regex":
            return wanted
    raise invalid(
        "`response_format.type` must be text, json_object, json_schema or regex.",
        param="response_format.type",
        code="invalid_value",
    )


def _answer_schema(chat: ChatBody) -> Any:
    """The answer's schema beside tools, which the conversion does not take together."""
    if not chat.tools or chat.response_format is None or chat.response_format.get("type") == "text":
        return None
    wanted = _response_format(chat.response_format).get("json_schema")
    if wanted is None:
        raise refuse("response_format", "of type regex together with tools is not supported")
    return wanted.get("schema", {"type": "object"})


def _wants_thinking(chat: ChatBody) -> bool | None:
    if chat.thinking is None:
        return None
    match chat.thinking.get("type"):
        case "enabled" | "adaptive":
            return True
        case "disabled":
            return False
    raise invalid("`thinking.type` must be enabled or disabled.", param="thinking.type", code="invalid_value")


def _refuse_unserved(chat: ChatBody) -> None:
    if chat.functions:
        raise refuse("functions", "is deprecated and not supported; use `tools`")
    if chat.function_call not in (None, "none", "auto"):
        raise refuse("function_call", "is deprecated and not supported; use `tool_choice`")
    if chat.modalities is not None and chat.modalities != ["text"]:
        raise refuse("modalities", 'other than ["text"] is not supported')
    for name in ("audio", "web_search_options"):
        if getattr(chat, name) is not None:
            raise refuse(name)


def _max_tokens(chat: ChatBody) -> int | None:
    both = chat.max_tokens is not None and chat.max_completion_tokens is not None
    if both and chat.max_tokens != chat.max_completion_tokens:
        raise invalid(
            "`max_tokens` and `max_completion_tokens` contradict each other; send one of them.",
            param="max_completion_tokens",
        )
    return chat.max_completion_tokens if chat.max_completion_tokens is not None else chat.max_tokens


_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}


def _message(index: int, message: dict[str, Any]) -> dict[str, Any]:
    """What the conversion knows of a message; other fields (`name`, what SDKs echo from responses) have no effect."""
    where = f"messages[{index}]"
    role = message.get("role")
    if role == "function" or message.get("function_call"):
        raise refuse(f"{where}.role", "`function` is deprecated and not supported; use `tool`")
    if not isinstance(role, str) or role not in _ROLES:
        raise invalid(
            "A message's role must be one of system, developer, user, assistant, tool.",
            param=f"{where}.role",
            code="invalid_value",
        )
    checked: dict[str, Any] = {"role": _ROLES[role], "content": _content(where, role, message.get("content"))}
    if role == "assistant":
        if isinstance(message.get("reasoning_content"), str):
            checked["reasoning_content"] = message["reasoning_content"]
        if message.get("prefix") is True:
            checked["prefix"] = True
        if message.get("tool_calls"):
            checked["tool_calls"] = _tool_calls(f"{where}.tool_calls", message["tool_calls"])
    if role == "tool":
        if not isinstance(message.get("tool_call_id"), str):
            raise invalid("A tool message needs `tool_call_id`.", param=f"{where}.tool_call_id", code="invalid_value")
        checked["tool_call_id"] = message["tool_call_id"]
    return checked


def _tool_calls(where: str, calls: Any) -> list[dict[str, Any]]:
    checked = []
    for index, call in enumerate(calls if isinstance(calls, list) else [None]):
        function = call.get("function") if isinstance(call, dict) else None
        texts = (function.get("name"), function.get("arguments")) if isinstance(function, dict) else (None, None)
        if not all(isinstance(text, str) for text in texts):
            raise invalid(
                "A tool call needs `id` and `function` with `name` and `arguments` (strings).",
                param=f"{where}[{index}]",
                code="invalid_value",
            )
        checked.append(
            {
                "id": str(call.get("id") or f"call_{index}"),
                "type": "function",
                "function": {"name": texts[0], "arguments": texts[1] or "{}"},
            }
        )
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
    return [
        {"type": "text", "text": checks.text_part(f"{where}.content[{index}]", _refusal_as_text(part))}
        for index, part in enumerate(content)
    ]


def _refusal_as_text(part: Any) -> Any:
    """Assistants may have refused; models see it as what was said."""
    if isinstance(part, dict) and part.get("type") == "refusal":
        return {"type": "text", "text": part.get("refusal")}
    return part
