"""What the grammars let through and what they do not, checked with the compiler that workers use."""

from __future__ import annotations

import json
from typing import Any

import deepseek_recipe as recipe
import llguidance
import pytest

from controlplane.inference.dsml import Dsml
from controlplane.inference.errors import ApiError
from controlplane.inference.grammar_faults import closed, schema_fault
from controlplane.inference.grammars import (
    Hermes,
    Tool,
    assemble,
    json_answer,
    regex_answer,
)
from tests.controlplane.inference.conftest import train_tokenizer

WEATHER = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}, "unit": {"enum": ["C", "F"]}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
TOOLS = [Tool("weather", "of a city", WEATHER, strict=True), Tool("now", None, None, strict=False)]
MARK = recipe.SpecialToken.Dsml.default_str()


@pytest.fixture(scope="module")
def vocabulary() -> llguidance.LLTokenizer:
    return llguidance.LLTokenizer(train_tokenizer().to_str(), eos_token=0)


def follows(vocabulary: llguidance.LLTokenizer, grammar: str, text: str) -> bool:
    """Whether `text` is a whole output under `grammar`."""
    matcher = llguidance.LLMatcher(vocabulary, grammar)
    assert not matcher.is_error(), matcher.get_error()
    tokens = vocabulary.tokenize_bytes(text.encode())
    return bool(matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting())


def hermes(name: str, arguments: Any) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {json.dumps(arguments)}}}\n</tool_call>'


def dsml(*parameters: tuple[str, str, str]) -> str:
    lines = [
        f'<{MARK} parameter name="{name}" string="{text}">{value}</{MARK} parameter>\n'
        for name, text, value in parameters
    ]
    return f'<{MARK} invoke name="weather">\n{"".join(lines)}</{MARK} invoke>\n'


PARIS = {"city": "Paris", "days": 3}


@pytest.mark.parametrize(
    ("text", "fine"),
    [
        ("Just text, with < and <tool.", True),
        ("", True),
        (hermes("weather", PARIS), True),
        ("Sure. " + hermes("weather", {**PARIS, "unit": "C"}), True),
        (hermes("now", {"anything": [1, None]}), True),
        (hermes("weather", PARIS) + "\n" + hermes("now", {}), True),
        (hermes("weather", {"city": "Paris"}), False),
        (hermes("weather", {**PARIS, "unit": "K"}), False),
        (hermes("weather", {**PARIS, "more": 1}), False),
        (hermes("gone", {}), False),
        (hermes("now", {}) + " and text", False),
        ("<tool_call>", False),
    ],
)
def test_calls_of_chatml_models(vocabulary: llguidance.LLTokenizer, text: str, fine: bool) -> None:
    assert follows(vocabulary, assemble(Hermes({}).calls(TOOLS, required=False, parallel=True)), text) is fine


def test_a_required_call_is_the_whole_answer(vocabulary: llguidance.LLTokenizer) -> None:
    grammar = assemble(Hermes({}).calls(TOOLS, required=True, parallel=False))
    assert follows(vocabulary, grammar, hermes("now", {}))
    assert not follows(vocabulary, grammar, "No.")
    assert not follows(vocabulary, grammar, hermes("now", {}) + "\n" + hermes("now", {}))


@pytest.mark.parametrize(
    ("parameters", "fine"),
    [
        ([("city", "true", "Paris <3"), ("days", "false", "3")], True),
        ([("city", "true", "Paris"), ("days", "false", "3"), ("unit", "true", "C")], True),
        ([("city", "true", "Paris"), ("days", "false", "three")], False),
        ([("city", "true", "Paris"), ("days", "false", "3"), ("unit", "true", "K")], False),
        ([("city", "true", "Paris")], False),
    ],
)
def test_calls_of_deepseek_models(
    vocabulary: llguidance.LLTokenizer, parameters: list[tuple[str, str, str]], fine: bool
) -> None:
    body = Dsml(MARK).calls(TOOLS, required=False, parallel=True)
    block = f"\n\n<{MARK} calls>\n{dsml(*parameters)}</{MARK} calls>"
    assert follows(vocabulary, assemble(body), f"Well.{block}") is fine
    thought = assemble(body, after="</think>")
    assert follows(vocabulary, thought, f"hm</think>{block}") is fine
    assert not follows(vocabulary, thought, block)
    required = assemble(Dsml(MARK).calls(TOOLS, required=True, parallel=True))
    assert follows(vocabulary, required, f"{dsml(*parameters)}</{MARK} calls>") is fine


def test_what_the_dsml_grammar_allows_is_what_the_library_parses() -> None:
    body = {
        "model": "DeepSeek-V4.1-Flash",
        "messages": [{"role": "user", "content": "hi"}],
        "tools": [{"type": "function", "function": {"name": "weather", "parameters": WEATHER}}],
    }
    converted = recipe.ChatCompletionRequest(body).convert(recipe.ConversionOptions(default_thinking_mode=False))
    generator = recipe.ChatCompletionRequest.chunk_generator(converted, "", "")
    processor = recipe.StreamProcessor(generator, converted.parsing_options)
    block = f"\n\n<{MARK} calls>\n{dsml(('city', 'true', 'Paris'), ('days', 'false', '3'))}</{MARK} calls>"
    chunks = processor.push(recipe.InferenceChunk.ready())
    chunks += processor.push(recipe.InferenceChunk.text(block, 1))
    chunks += processor.push(recipe.InferenceChunk.finish(recipe.InferenceFinishReason.Stop))
    deltas = [json.loads(chunk.to_json())["choices"][0]["delta"] for chunk in chunks]
    calls = [call for delta in deltas for call in delta.get("tool_calls") or ()]
    assert calls[0]["function"]["name"] == "weather"
    assert json.loads("".join(call["function"]["arguments"] for call in calls)) == PARIS


@pytest.mark.parametrize(
    ("schema", "path"),
    [
        ({"type": "object", "properties": {"a": {"type": "strng"}}}, ".properties.a"),
        ({"type": "object", "properties": {"a": {"type": "array", "items": {"not": {}}}}}, ".properties.a.items"),
        ({"anyOf": [{"type": "string"}, {"type": "string", "pattern": "("}]}, ".anyOf[1]"),
        ({"$ref": "#/$defs/gone"}, ""),
        ({"$ref": "https://example.com/schema.json"}, ""),
        ({"type": "array", "uniqueItems": True}, ""),
    ],
)
def test_what_cannot_be_compiled_is_named_by_its_path(schema: Any, path: str) -> None:
    found = schema_fault(schema)
    assert found is not None
    assert found[0] == path
    with pytest.raises(ApiError) as caught:
        json_answer(schema, param="here")
    assert (caught.value.status, caught.value.detail.param) == (400, f"here{path}")


def test_strict_tools_are_refused_where_others_take_any_object(vocabulary: llguidance.LLTokenizer) -> None:
    odd = {"type": "object", "properties": {"a": {"not": {}}}}
    with pytest.raises(ApiError) as caught:
        Hermes({}).calls([Tool("f", None, odd, strict=True)], required=True, parallel=True)
    assert caught.value.detail.param == "tools[0].parameters.properties.a"
    grammar = assemble(Hermes({}).calls([Tool("f", None, odd, strict=False)], required=True, parallel=True))
    assert follows(vocabulary, grammar, hermes("f", {"b": 1}))


def test_strict_schemas_keep_their_bounds_and_close_their_objects() -> None:
    inner = {"type": "object", "properties": {"properties": {"type": "string", "maxLength": 3}}}
    schema = {"type": "object", "properties": {"a": {"type": "array", "items": inner, "maxItems": 2}}}
    made = closed(schema)
    assert made["additionalProperties"] is False
    assert made["properties"]["a"]["maxItems"] == 2
    assert made["properties"]["a"]["items"]["additionalProperties"] is False
    assert made["properties"]["a"]["items"]["properties"] == {"properties": {"type": "string", "maxLength": 3}}


def test_recursive_schemas_compile(vocabulary: llguidance.LLTokenizer) -> None:
    node = {"type": "object", "properties": {"next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}},
            "required": ["next"], "additionalProperties": False}  # fmt: skip
    grammar = assemble(json_answer({"$ref": "#/$defs/node", "$defs": {"node": node}}, param="s"))
    assert follows(vocabulary, grammar, '{"next": {"next": null}}')


def test_a_regex_is_taken_with_its_slashes_and_refused_with_its_reason(vocabulary: llguidance.LLTokenizer) -> None:
    assert follows(vocabulary, assemble(regex_answer("a/b[/]{2}", param="r")), "a/b//")
    with pytest.raises(ApiError, match="look-around"):
        regex_answer("(?=x)a", param="r")


def test_names_with_quotes_stay_inside_their_strings(vocabulary: llguidance.LLTokenizer) -> None:
    tool = Tool('odd"name\n', None, {"type": "object", "additionalProperties": False}, strict=False)
    grammar = assemble(Hermes({}).calls([tool], required=True, parallel=True))
    spelled = '<tool_call>\n{"name": "odd\\"name\\n", "arguments": {}}\n</tool_call>'
    assert follows(vocabulary, grammar, spelled)
