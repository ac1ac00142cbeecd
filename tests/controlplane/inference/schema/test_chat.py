from __future__ import annotations

import json
from typing import Any

import pytest

from controlplane.inference.errors import ApiError
from controlplane.inference.schema.call import Call
from controlplane.inference.schema.chat import parse_chat

HELLO = [{"role": "user", "content": "hello"}]


def parse(**fields: Any) -> Call:
    return parse_chat(json.dumps({"model": "m", "messages": HELLO, **fields}).encode(), max_choices=4)


def test_a_plain_request() -> None:
    call = parse()
    assert (call.model, call.stream, call.choices, call.logprobs, call.stop) == ("m", False, 1, None, ())


def test_known_parameters_without_effect_are_accepted() -> None:
    parse(user="u", store=False, metadata={"a": "b"}, parallel_tool_calls=True, service_tier="auto")


def test_neutral_values_of_what_is_not_served_are_accepted() -> None:
    parse(response_format={"type": "text"}, tools=[], tool_choice="auto", logit_bias={}, presence_penalty=0, n=1)


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"temperature": "hot"}, "temperature", "invalid_value"),
        ({"temperature": 3}, "temperature", "invalid_value"),
        ({"top_p": 0}, "top_p", "invalid_value"),
        ({"max_tokens": 0}, "max_tokens", "invalid_value"),
        ({"max_tokens": 1.5}, "max_tokens", "invalid_value"),
        ({"seed": -1}, "seed", "invalid_value"),
        ({"seed": 2**63}, "seed", "invalid_value"),
        ({"n": 99}, "n", None),
        ({"stop": ["x"] * 17}, "stop", None),
        ({"stop": [""]}, "stop", None),
        ({"stop": 3}, "stop", "invalid_value"),
        ({"top_logprobs": 2}, "top_logprobs", None),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "invalid_value"),
        ({"stream_options": {"include_usage": True}}, "stream_options", None),
        ({"stream": True, "stream_options": {"include_usage": "y"}}, "stream_options.include_usage", "invalid_value"),
        ({"max_tokens": 3, "max_completion_tokens": 4}, "max_completion_tokens", None),
        ({"colour": "red"}, "colour", "unknown_parameter"),
        ({"tools": ["f"]}, "tools[0]", "invalid_value"),
        ({"tool_choice": "required"}, "tool_choice", None),
        ({"functions": [{}]}, "functions", "unsupported_parameter"),
        ({"response_format": {"type": "xml"}}, "response_format.type", "invalid_value"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", "invalid_value"),
        ({"logit_bias": {"one": 5}}, "logit_bias", "invalid_value"),
        ({"logit_bias": {"1": 500}}, "logit_bias", "invalid_value"),
        ({"presence_penalty": 2.5}, "presence_penalty", "invalid_value"),
        ({"messages": []}, "messages", "invalid_value"),
        ({"messages": ["x"]}, "messages[0]", "invalid_value"),
        ({"messages": [{"role": "wizard", "content": "x"}]}, "messages[0].role", "invalid_value"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].tool_call_id", "invalid_value"),
        ({"messages": [{"role": "function", "content": "x"}]}, "messages[0].role", "unsupported_parameter"),
        ({"messages": [{"role": "assistant", "tool_calls": [{}]}]}, "messages[0].tool_calls[0]", "invalid_value"),
        ({"messages": [{"role": "user"}]}, "messages[0].content", "invalid_value"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content", "invalid_value"),
    ],
)
def test_mistakes_name_their_parameter(fields: dict[str, Any], param: str, code: str | None) -> None:
    with pytest.raises(ApiError) as caught:
        parse(**fields)
    assert caught.value.status == 400
    assert caught.value.detail.param == param
    assert caught.value.detail.code == code


def test_images_are_refused_by_name() -> None:
    part = {"type": "image_url", "image_url": {"url": "http://example.com/x.png"}}
    with pytest.raises(ApiError, match="Images") as caught:
        parse(messages=[{"role": "user", "content": [{"type": "text", "text": "see"}, part]}])
    assert caught.value.detail.param == "messages[0].content[1]"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b'"x"',
        b'{"model": "\xff"}',
        b'{"model":"m","messages":[{"role":"user","content":"\\ud800x"}]}',
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b'{"temperature": NaN}',
    ],
)
def test_what_is_no_json_object_is_a_400(body: bytes) -> None:
    with pytest.raises(ApiError) as caught:
        parse_chat(body, max_choices=1)
    assert (caught.value.status, caught.value.detail.code) == (400, "invalid_json")


def test_a_missing_parameter_is_named() -> None:
    with pytest.raises(ApiError) as caught:
        parse_chat(b'{"model": "m"}', max_choices=1)
    assert (caught.value.detail.param, caught.value.detail.code) == ("messages", "missing_required_parameter")


def test_messages_as_sdks_send_them_back() -> None:
    echoed = {"role": "assistant", "content": "hi", "refusal": None, "tool_calls": None, "annotations": []}
    call = parse(messages=[{"role": "developer", "content": "be brief"}, *HELLO, echoed, *HELLO])
    assert [message["role"] for message in call.body["messages"]] == ["system", "user", "assistant", "user"]
    assert parse(max_completion_tokens=7).max_tokens == 7
    assert parse(stop="a").stop == ("a",)
