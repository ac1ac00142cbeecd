from __future__ import annotations

import json
from typing import Any

import pytest

from controlplane.inference.errors import ApiError
from controlplane.inference.schema.call import Call
from controlplane.inference.schema.responses import parse_response


def parse(**fields: Any) -> Call:
    return parse_response(json.dumps({"model": "m", "input": "hello", **fields}).encode())


def test_a_plain_request_and_what_the_response_reports_of_it() -> None:
    call = parse(instructions="Be brief.", store=True, metadata={"a": "b"}, max_output_tokens=5)
    assert (call.model, call.max_tokens, call.body["instructions"]) == ("m", 5, "Be brief.")
    assert (call.settings["store"], call.settings["metadata"]) == (False, {"a": "b"})


def test_logprobs_are_asked_for_by_include() -> None:
    assert parse().logprobs is None
    assert parse(include=["message.output_text.logprobs"], top_logprobs=3).logprobs == 3


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"input": []}, "input", "invalid_value"),
        ({"input": ["x"]}, "input[0]", "invalid_value"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "http://x"}]}]},
            "input[0].content[0]",
            "unsupported_content",
        ),
        ({"previous_response_id": "resp_1"}, "previous_response_id", "unsupported_parameter"),
        ({"conversation": "c"}, "conversation", "unsupported_parameter"),
        ({"background": True}, "background", "unsupported_parameter"),
        ({"truncation": "some"}, "truncation", "invalid_value"),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type", "invalid_value"),
        ({"tool_choice": "required"}, "tool_choice", None),
        ({"colour": "red"}, "colour", "unknown_parameter"),
    ],
)
def test_mistakes_name_their_parameter(fields: dict[str, Any], param: str, code: str | None) -> None:
    with pytest.raises(ApiError) as caught:
        parse(**fields)
    assert caught.value.status == 400
    assert (caught.value.detail.param, caught.value.detail.code) == (param, code)
