from __future__ import annotations

import json
from typing import Any

import pytest

from controlplane.inference.conversation import ChatModel
from controlplane.inference.errors import ApiError
from controlplane.inference.schema.call import Call
from controlplane.inference.schema.chat import parse_chat


def call(**fields: Any) -> Call:
    body = {"model": "m", "messages": [{"role": "user", "content": "Hello world"}], **fields}
    return parse_chat(json.dumps(body).encode(), max_choices=4)


def spelled(model: ChatModel, tokens: list[int]) -> str:
    return b"".join(model.tokenizer.spellings[token] for token in tokens).decode()


def test_a_conversation_becomes_chatml(tiny: ChatModel) -> None:
    (prompt,) = tiny.prepare(
        call(messages=[{"role": "developer", "content": "Brief."}, {"role": "user", "content": "Hi"}]), 4096
    )
    assert spelled(tiny, prompt.tokens) == (
        "<|im_start|>system\nBrief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )


def test_an_assistant_prefix_is_continued(tiny: ChatModel) -> None:
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Well", "prefix": True}]
    assert spelled(tiny, tiny.prepare(call(messages=messages), 4096)[0].tokens).endswith("assistant\nWell")


def test_text_parts_are_joined(tiny: ChatModel) -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    prompt = tiny.prepare(call(messages=[{"role": "user", "content": parts}]), 4096)[0]
    assert "one\n\ntwo<|im_end|>" in spelled(tiny, prompt.tokens)


def test_sampling_defaults_and_values(tiny: ChatModel) -> None:
    plain = tiny.prepare(call(), 4096)[0]
    assert (plain.temperature, plain.top_p) == (1.0, 1.0)
    chosen = tiny.prepare(call(temperature=0, top_p=0.5, max_tokens=7), 4096)[0]
    assert (chosen.temperature, chosen.top_p, chosen.max_tokens) == (0.0, 0.5, 7)


def test_bounds_of_strict_schemas_reach_the_grammar(tiny: ChatModel) -> None:
    """The conversion drops them from its own idea of the schema."""
    schema = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 12}}, "required": ["city"],
              "additionalProperties": False}  # fmt: skip
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": schema}}
    tool = {"type": "function", "function": {"name": "f", "parameters": schema, "strict": True}}
    for fields in ({"response_format": wanted}, {"tools": [tool]}):
        assert '"maxLength": 12' in tiny.prepare(call(**fields), 4096)[0].grammar


def test_the_output_is_bounded_by_what_the_context_leaves(tiny: ChatModel) -> None:
    prompt = tiny.prepare(call(), 100)[0]
    assert prompt.max_tokens == 100 - len(prompt.tokens)


@pytest.mark.parametrize("fields", [{"max_tokens": 90}, {"messages": [{"role": "user", "content": "x" * 400}]}])
def test_a_context_that_does_not_fit_names_both_numbers(tiny: ChatModel, fields: dict[str, Any]) -> None:
    with pytest.raises(ApiError, match="maximum context length is 100 tokens") as caught:
        tiny.prepare(call(**fields), 100)
    assert caught.value.detail.code == "context_length_exceeded"


def test_thinking_is_refused_where_the_model_does_not(tiny: ChatModel) -> None:
    tiny.prepare(call(thinking={"type": "disabled"}, reasoning_effort="low"), 4096)
    with pytest.raises(ApiError) as caught:
        tiny.prepare(call(thinking={"type": "enabled"}), 4096)
    assert caught.value.detail.param == "thinking"
