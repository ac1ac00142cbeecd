from __future__ import annotations

import json
from typing import Any

import pytest

from controlplane.inference.errors import ApiError
from controlplane.inference.schema.call import Call
from controlplane.inference.schema.messages import parse_messages

HELLO = [{"role": "user", "content": "hello"}]
IMAGE = {"type": "image", "source": {"type": "url", "url": "http://example.com/x.png"}}

RESULT = {"type": "tool_result", "tool_use_id": "a", "content": [IMAGE]}


def parse(**fields: Any) -> Call:
    return parse_messages(json.dumps({"model": "m", "max_tokens": 9, "messages": HELLO, **fields}).encode())


def test_a_plain_request() -> None:
    call = parse(system=[{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}])
    assert (call.model, call.max_tokens, call.stream, call.continues) == ("m", 9, False, False)
    assert call.body["system"] == [{"type": "text", "text": "Be brief."}]


def test_what_coding_agents_send_along_is_accepted() -> None:
    tool = {"name": "f", "input_schema": {"type": "object"}, "cache_control": {"type": "ephemeral"}}
    call = parse(
        metadata={"user_id": "u"},
        context_management={"edits": []},
        tools=[tool],
        tool_choice={"type": "auto", "disable_parallel_tool_use": True},
        thinking={"type": "adaptive"},
    )
    assert call.body["tools"] == [{"name": "f", "input_schema": {"type": "object"}}]
    assert (call.parallel_tools, call.wants_thinking) == (False, None)


def test_counting_needs_no_limit() -> None:
    body = json.dumps({"model": "m", "messages": HELLO}).encode()
    assert parse_messages(body, counting=True).max_tokens is None
    with pytest.raises(ApiError) as caught:
        parse_messages(body)
    assert (caught.value.detail.param, caught.value.detail.code) == ("max_tokens", "missing_required_parameter")


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"messages": []}, "messages", "invalid_value"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role", "invalid_value"),
        ({"messages": [{"role": "user"}]}, "messages[0].content", "invalid_value"),
        ({"messages": [{"role": "user", "content": ["x"]}]}, "messages[0].content[0]", "invalid_value"),
        ({"messages": [{"role": "user", "content": [IMAGE]}]}, "messages[0].content[0]", "unsupported_content"),
        (
            {"messages": [{"role": "user", "content": [RESULT]}]},
            "messages[0].content[0].content[0]",
            "unsupported_content",
        ),
        ({"temperature": 1.5}, "temperature", "invalid_value"),
        ({"stop_sequences": [""]}, "stop_sequences", None),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0].type", "unsupported_parameter"),
        ({"tool_choice": {"type": "any"}}, "tool_choice", None),
        ({"mcp_servers": [{}]}, "mcp_servers", "unsupported_parameter"),
        ({"thread": {"type": "create"}}, "thread", "thread_unsupported_request"),
        ({"thinking": {"type": "maybe"}}, "thinking.type", "invalid_value"),
        ({"output_config": {"format": {"type": "xml"}}}, "output_config.format", "invalid_value"),
        ({"colour": "red"}, "colour", "unknown_parameter"),
    ],
)  # fmt: skip
def test_mistakes_name_their_parameter(fields: dict[str, Any], param: str, code: str | None) -> None:
    with pytest.raises(ApiError) as caught:
        parse(**fields)
    assert caught.value.status == 400
    assert (caught.value.detail.param, caught.value.detail.code) == (param, code)
