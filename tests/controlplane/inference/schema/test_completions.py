from __future__ import annotations

import json
from typing import Any

import pytest

from controlplane.inference.errors import ApiError
from controlplane.inference.schema.call import Call
from controlplane.inference.schema.completions import parse_completion


def parse(**fields: Any) -> Call:
    body = json.dumps({"model": "m", "prompt": "hello", **fields}).encode()
    return parse_completion(body, max_choices=4, max_prompts=3)


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [
        ("a", ("a",)),
        (["a", "b"], ("a", "b")),
        ([1, 2], ([1, 2],)),
        ([[1], [2, 3]], ([1], [2, 3])),
    ],
)
def test_prompts_in_all_their_shapes(prompt: Any, prompts: Any) -> None:
    assert parse(prompt=prompt).prompts == prompts


def test_the_default_limit_is_openai_s() -> None:
    assert parse().max_tokens == 16


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"prompt": []}, "prompt", "invalid_value"),
        ({"prompt": ["a"] * 4}, "prompt", None),
        ({"prompt": ["a", 3]}, "prompt[1]", "invalid_value"),
        ({"prompt": [[]]}, "prompt[0]", "invalid_value"),
        ({"prompt": [True]}, "prompt[0]", "invalid_value"),
        ({"suffix": "x"}, "suffix", "unsupported_parameter"),
        ({"n": 2, "best_of": 3}, "best_of", "unsupported_parameter"),
        ({"echo": True, "logprobs": 1}, "echo", "unsupported_parameter"),
        ({"logprobs": 6}, "logprobs", "invalid_value"),
        ({"messages": []}, "messages", "unknown_parameter"),
    ],
)
def test_mistakes_name_their_parameter(fields: dict[str, Any], param: str, code: str | None) -> None:
    with pytest.raises(ApiError) as caught:
        parse(**fields)
    assert caught.value.status == 400
    assert (caught.value.detail.param, caught.value.detail.code) == (param, code)
