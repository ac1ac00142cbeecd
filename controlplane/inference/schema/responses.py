"""`POST /v1/responses`, without a store: every request carries its whole conversation."""

from __future__ import annotations

from typing import Any

import msgspec

from controlplane.inference.errors import invalid
from controlplane.inference.schema import checks
from controlplane.inference.schema.call import Call, Protocol
from controlplane.inference.schema.checks import refuse

IGNORED = frozenset(
    {
        "access_programs",
        "background_options",
        "client_metadata",
        "context_management",
        "max_tool_calls",
        "moderation",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        "safety_identifier",
        "service_tier",
        "store",
        "stream_options",
        "user",
    }
)
"""Accepted, no effect. `store`: nothing is ever stored, and responses say so."""


class ResponsesBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    model: checks.ModelName
    input: str | list[Any]
    instructions: str | None = None
    stream: bool | None = None
    temperature: checks.Temperature | None = None
    top_p: checks.TopP | None = None
    top_k: checks.TopK | None = None
    min_p: checks.MinP | None = None
    max_output_tokens: checks.Positive | None = None
    top_logprobs: checks.TopLogprobs | None = None
    include: list[str] | None = None
    metadata: dict[str, str] | None = None
    reasoning: dict[str, Any] | None = None
    text: dict[str, Any] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    truncation: str | None = None
    # Refused by name where they ask for anything.
    background: bool | None = None
    conversation: Any = None
    image: Any = None
    previous_response_id: str | None = None
    prompt: Any = None


def parse_response(body: bytes) -> Call:
    """Raises ApiError (400)."""
    asked = checks.convert(checks.decode_object(body, ignored=IGNORED), ResponsesBody)
    _refuse_unserved(asked)
    if not asked.input:
        raise invalid("`input` must not be empty.", param="input", code="invalid_value")
    checks.check_tools(asked.tools)
    wants_logprobs = "message.output_text.logprobs" in (asked.include or [])
    return Call(
        protocol=Protocol.RESPONSES,
        model=asked.model,
        body=_conversation(asked),
        stream=bool(asked.stream),
        temperature=asked.temperature,
        top_p=asked.top_p,
        top_k=asked.top_k or 0,
        min_p=asked.min_p or 0.0,
        max_tokens=asked.max_output_tokens,
        logprobs=(asked.top_logprobs or 0) if wants_logprobs or asked.top_logprobs else None,
        wants_thinking=_wants_thinking(asked.reasoning),
        parallel_tools=asked.parallel_tool_calls is not False,
        answer_schema=_wanted_format(asked).get("schema") if asked.tools else None,
        strict_answer=bool(_wanted_format(asked).get("strict")),
        settings=_settings(asked),
    )


def _refuse_unserved(asked: ResponsesBody) -> None:
    if asked.previous_response_id is not None:
        raise refuse("previous_response_id", "is not supported: nothing is stored; send the whole conversation")
    for name in ("conversation", "prompt"):
        if getattr(asked, name) is not None:
            raise refuse(name, "is not supported: nothing is stored")
    for name in ("background", "image"):
        if getattr(asked, name):
            raise refuse(name)
    if asked.truncation not in (None, "disabled", "auto"):
        raise invalid("`truncation` must be auto or disabled.", param="truncation", code="invalid_value")


def _wants_thinking(reasoning: dict[str, Any] | None) -> bool | None:
    return False if (reasoning or {}).get("effort") in ("none", "minimal") else None


def _conversation(asked: ResponsesBody) -> dict[str, Any]:
    body: dict[str, Any] = {"input": asked.input}
    if isinstance(asked.input, list):
        body["input"] = [_item(index, item) for index, item in enumerate(asked.input)]
    if asked.instructions:
        body["instructions"] = asked.instructions
    if asked.tools:
        body["tools"] = asked.tools
        if asked.tool_choice is not None:
            body["tool_choice"] = asked.tool_choice
    elif asked.tool_choice not in (None, "none", "auto"):
        raise invalid("`tool_choice` needs `tools`.", param="tool_choice")
    if asked.reasoning and asked.reasoning.get("effort") is not None:
        body["reasoning"] = {"effort": asked.reasoning["effort"]}
    wanted = _wanted_format(asked)
    if wanted and not asked.tools:  # beside tools it is `answer_schema`: the conversion does not take both
        body["text"] = {"format": wanted}
    return body


def _wanted_format(asked: ResponsesBody) -> dict[str, Any]:
    """`json_object` is any object; empty for text."""
    wanted = (asked.text or {}).get("format")
    if wanted is None:
        return {}
    if not isinstance(wanted, dict) or wanted.get("type") not in ("text", "json_object", "json_schema"):
        raise invalid(
            "`text.format.type` must be text, json_object or json_schema.",
            param="text.format.type",
            code="invalid_value",
        )
    if wanted["type"] == "json_object":
        return {"type": "json_schema", "name": "object", "schema": {"type": "object"}}
    return {} if wanted["type"] == "text" else wanted


def _item(index: int, item: Any) -> Any:
    where = f"input[{index}]"
    if not isinstance(item, dict):
        raise invalid("An input item must be an object.", param=where, code="invalid_value")
    for name in ("content", "output"):
        for at, part in enumerate(found if isinstance(found := item.get(name), list) else []):
            checks.refuse_media(f"{where}.{name}[{at}]", part)
    return item


def _settings(asked: ResponsesBody) -> dict[str, Any]:
    """What the response reports of its request."""
    return {
        "instructions": asked.instructions,
        "max_output_tokens": asked.max_output_tokens,
        "metadata": asked.metadata or {},
        "parallel_tool_calls": asked.parallel_tool_calls is not False,
        "previous_response_id": None,
        "reasoning": {"effort": (asked.reasoning or {}).get("effort"), "summary": None},
        "service_tier": "default",
        "store": False,
        "temperature": 1.0 if asked.temperature is None else asked.temperature,
        "text": {"format": (asked.text or {}).get("format") or {"type": "text"}},
        "tool_choice": asked.tool_choice or "auto",
        "tools": asked.tools or [],
        "top_logprobs": asked.top_logprobs or 0,
        "top_p": 1.0 if asked.top_p is None else asked.top_p,
        "truncation": asked.truncation or "disabled",
        "background": False,
    }
