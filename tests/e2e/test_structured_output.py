"""A real, small model under grammars: what it says is nonsense, and always has the form that was asked for."""

from __future__ import annotations

import json
import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

import anthropic
import pytest
from openai.types.chat import ChatCompletion
from pydantic import BaseModel, Field

from tests.running import System

pytestmark = pytest.mark.e2e

MODEL = "smollm2"
MESSAGES: list[Any] = [{"role": "user", "content": "What is the weather in Paris?"}]
PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 12}, "unit": {"type": "string", "enum": ["C", "F"]}},
    "required": ["city", "unit"],
    "additionalProperties": False,
}
TOOL: Any = {"type": "function", "function": {"name": "weather", "parameters": PARAMETERS, "strict": True}}


class Place(BaseModel):
    city: str = Field(max_length=12)
    size: Literal["small", "large"]


def test_answers_in_one_batch_each_follow_their_own_format(system: System) -> None:
    """Five at once, hot enough to go wrong without masks; a free one among them."""
    client = system.client()
    named = {"name": "x", "strict": True, "schema": PARAMETERS}
    formats: list[dict[str, Any]] = [
        {"response_format": {"type": "json_schema", "json_schema": named}},
        {"extra_body": {"response_format": {"type": "regex", "regex": "(yes|no), [0-9]{3}"}}},
        {"tools": [TOOL], "tool_choice": "required", "parallel_tool_calls": False},
        {},
        {"tools": [TOOL, {"type": "function", "function": {"name": "now"}}],
         "tool_choice": {"type": "function", "function": {"name": "now"}}, "parallel_tool_calls": False},
    ]  # fmt: skip

    def ask(at: int) -> ChatCompletion:
        options = formats[at]
        return client.chat.completions.create(
            model=MODEL, messages=MESSAGES, max_tokens=60 if options else 8, temperature=1.5, seed=at, **options
        )

    with ThreadPoolExecutor(5) as pool:
        schema, regex, call, free, other = (reply.choices[0] for reply in pool.map(ask, range(5)))
    assert set(json.loads(schema.message.content or "")) == {"city", "unit"}
    assert re.fullmatch("(yes|no), [0-9]{3}", regex.message.content or "")
    assert (call.finish_reason, call.message.content) == ("tool_calls", None)
    (made,) = call.message.tool_calls or ()
    assert json.loads(made.function.arguments)["unit"] in ("C", "F")
    assert free.finish_reason == "length"
    assert other.finish_reason in ("tool_calls", "length")
    assert all(made.function.name == "now" for made in other.message.tool_calls or ())


def test_typed_answers_through_both_sdks(system: System) -> None:
    reply = system.client().chat.completions.parse(
        model=MODEL, messages=MESSAGES, response_format=Place, max_tokens=60, temperature=1.2
    )
    assert isinstance(reply.choices[0].message.parsed, Place)
    client = anthropic.Anthropic(base_url=system.url, api_key=system.first_run["api_key"], max_retries=0)
    with client.messages.stream(
        model=MODEL,
        max_tokens=60,
        messages=MESSAGES,
        tools=[{"name": "weather", "input_schema": PARAMETERS}],
        tool_choice={"type": "tool", "name": "weather", "disable_parallel_tool_use": True},
    ) as stream:
        final = stream.get_final_message()
    assert final.stop_reason == "tool_use"
    assert final.content[0].type == "tool_use"
    assert isinstance(final.content[0].input, dict)
    assert set(final.content[0].input) == {"city", "unit"}


def test_biases_and_seeds_on_the_real_engine(system: System) -> None:
    client = system.client()

    def ask(**options: Any) -> ChatCompletion:
        return client.chat.completions.create(
            model=MODEL, messages=MESSAGES, max_tokens=6, seed=7, temperature=1.0, **options
        )

    first, again = ask(logprobs=True, top_logprobs=2), ask(logprobs=True, top_logprobs=2)
    assert first.choices[0].message.content == again.choices[0].message.content
    assert first.system_fingerprint == again.system_fingerprint
    forced = ask(logit_bias={"28": 100}).choices[0].message.content or ""
    assert len(set(forced)) == 1
    assert len(forced) == 6
