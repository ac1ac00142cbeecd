"""`POST /v1/messages` and `/v1/messages/count_tokens`: Anthropic's protocol."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from controlplane.inference.errors import ApiError, invalid
from controlplane.inference.schema import checks
from controlplane.inference.schema.call import Call, Protocol
from controlplane.inference.schema.checks import refuse

IGNORED = frozenset(
    {
        "betas",
        "billing_policy",
        "cache_control",
        "compaction",
        "context_management",
        "diagnostics",
        "inference_geo",
        "metadata",
        "service_tier",
        "speed",
        "user_profile_id",
        "workspace_id",
    }
)
"""Known parameters without influence on what is generated here: accepted, no effect (docs/api.md)."""


class MessagesBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    model: checks.ModelName
    messages: list[dict[str, Any]]
    max_tokens: checks.Positive | None = None
    system: str | list[dict[str, Any]] | None = None
    stream: bool | None = None
    temperature: Annotated[float, Meta(ge=0, le=1)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    top_k: checks.TopK | None = None
    stop_sequences: list[str] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: dict[str, Any] | None = None
    thinking: dict[str, Any] | None = None
    output_config: dict[str, Any] | None = None
    output_format: dict[str, Any] | None = None
    # Refused by name where they ask for anything.
    container: Any = None
    fallbacks: list[Any] | None = None
    mcp_servers: list[Any] | None = None
    thread: Any = None


def parse_messages(body: bytes, *, counting: bool = False) -> Call:
    """Raises ApiError (400). `counting` needs no `max_tokens`."""
    asked = checks.convert(checks.decode_object(body, ignored=IGNORED), MessagesBody)
    if asked.max_tokens is None and not counting:
        raise invalid(
            "Missing required parameter: `max_tokens`.", param="max_tokens", code="missing_required_parameter"
        )
    for name in ("container", "fallbacks", "mcp_servers"):
        if getattr(asked, name):
            raise refuse(name)
    if asked.thread:
        # The code by which the SDK knows to send whole conversations from then on.
        raise ApiError(
            400,
            "`thread` is not supported: nothing is stored; send the whole conversation.",
            param="thread",
            code="thread_unsupported_request",
        )
    if not asked.messages:
        raise invalid("`messages` must hold at least one message.", param="messages", code="invalid_value")
    checks.check_tools(asked.tools)
    return Call(
        protocol=Protocol.MESSAGES,
        model=asked.model,
        body=_conversation(asked),
        stream=bool(asked.stream),
        temperature=asked.temperature,
        top_p=asked.top_p or None,
        top_k=asked.top_k or 0,
        max_tokens=asked.max_tokens,
        stop=checks.stops(asked.stop_sequences, param="stop_sequences"),
        wants_thinking=_wants_thinking(asked),
        parallel_tools=not (asked.tool_choice or {}).get("disable_parallel_tool_use", False),
        answer_schema=_answer_schema(asked),
        continues=asked.messages[-1].get("role") == "assistant",
    )


def _conversation(asked: MessagesBody) -> dict[str, Any]:
    body: dict[str, Any] = {"messages": [_message(index, message) for index, message in enumerate(asked.messages)]}
    if asked.system:
        body["system"] = asked.system if isinstance(asked.system, str) else _texts("system", asked.system)
    if asked.tools:
        body["tools"] = [_tool(index, tool) for index, tool in enumerate(asked.tools)]
        if asked.tool_choice is not None:
            body["tool_choice"] = {
                name: asked.tool_choice[name] for name in ("type", "name") if name in asked.tool_choice
            }
    elif asked.tool_choice is not None and asked.tool_choice.get("type") in ("any", "tool"):
        raise invalid("`tool_choice` needs `tools`.", param="tool_choice")
    if asked.thinking is not None:
        body["thinking"] = asked.thinking
    effort = (asked.output_config or {}).get("effort")
    if effort is not None:
        body["output_config"] = {"effort": effort}
    return body


def _tool(index: int, tool: dict[str, Any]) -> dict[str, Any]:
    """Client tools; those that Anthropic's servers would run are refused by name."""
    kind = tool.get("type")
    if kind not in (None, "custom"):
        raise refuse(
            f"tools[{index}].type", f"`{str(kind)[:60]}` is not supported: only tools that the client runs are"
        )
    return {name: value for name, value in tool.items() if name in ("name", "description", "input_schema", "strict")}


def _wants_thinking(asked: MessagesBody) -> bool | None:
    match (asked.thinking or {"type": None}).get("type"):
        case "enabled":
            return True
        case "disabled":
            return False
        case None if asked.thinking is None:
            return None
        case "adaptive":
            return None
    raise invalid("`thinking.type` must be enabled, adaptive or disabled.", param="thinking.type", code="invalid_value")


def _answer_schema(asked: MessagesBody) -> Any:
    wanted = asked.output_format or (asked.output_config or {}).get("format")
    if wanted is None:
        return None
    param = "output_format" if asked.output_format else "output_config.format"
    if not isinstance(wanted, dict) or wanted.get("type") != "json_schema" or "schema" not in wanted:
        raise invalid(f"`{param}` must be of type json_schema and hold a `schema`.", param=param, code="invalid_value")
    return wanted["schema"]


_ROLES = frozenset({"user", "assistant", "system"})


def _message(index: int, message: dict[str, Any]) -> dict[str, Any]:
    where = f"messages[{index}]"
    role, content = message.get("role"), message.get("content")
    if role not in _ROLES:
        raise invalid("A message's role must be user or assistant.", param=f"{where}.role", code="invalid_value")
    if isinstance(content, str):
        return {"role": role, "content": content}
    if not isinstance(content, list):
        raise invalid(
            "A message's content must be a string or a list of blocks.", param=f"{where}.content", code="invalid_value"
        )
    return {"role": role, "content": [_block(f"{where}.content[{at}]", block) for at, block in enumerate(content)]}


def _block(where: str, block: Any) -> Any:
    """A block without cache marks and citations; media are refused, inside tool results too."""
    checks.refuse_media(where, block)
    if not isinstance(block, dict):
        raise invalid("A content block must be an object.", param=where, code="invalid_value")
    block = {name: value for name, value in block.items() if name not in ("cache_control", "citations", "caller")}
    if block.get("type") == "text":
        checks.text_part(where, block)
    if block.get("type") == "tool_result" and isinstance(block.get("content"), list):
        block["content"] = [_block(f"{where}.content[{at}]", inner) for at, inner in enumerate(block["content"])]
    return block


def _texts(where: str, parts: list[dict[str, Any]]) -> list[dict[str, str]]:
    return [{"type": "text", "text": checks.text_part(f"{where}[{at}]", part)} for at, part in enumerate(parts)]
