"""What DeepSeek's markup keeps of a tool's schema."""

from __future__ import annotations

from typing import Any

import llguidance
import pytest

from controlplane.inference.dsml import Dsml
from controlplane.inference.errors import ApiError
from controlplane.inference.grammar_faults import closed
from controlplane.inference.grammars import Tool, assemble
from tests.controlplane.inference.test_grammars import MARK, dsml, follows, vocabulary

__all__ = ["vocabulary"]  # the fixture
NODE = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}


def grammar(parameters: Any, *, strict: bool = True) -> str:
    tool = Tool("weather", None, closed(parameters) if strict else parameters, strict=strict)
    return assemble(Dsml(MARK).calls([tool], required=True, parallel=False))


def call(*parameters: tuple[str, str, str]) -> str:
    return f"{dsml(*parameters)}</{MARK} calls>"


def one(schema: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"p": schema}, "required": ["p"]}


@pytest.mark.parametrize("parameters", [{"type": "object"}, {"type": "object", "properties": {}}, None])
def test_a_strict_tool_without_properties_takes_no_parameters(
    vocabulary: llguidance.LLTokenizer, parameters: Any
) -> None:
    made = grammar(parameters)
    assert follows(vocabulary, made, call())
    assert not follows(vocabulary, made, call(("p", "true", "x")))


def test_an_object_closed_by_hand_takes_no_parameters_either(vocabulary: llguidance.LLTokenizer) -> None:
    shut = grammar({"type": "object", "additionalProperties": False}, strict=False)
    assert not follows(vocabulary, shut, call(("p", "true", "x")))
    assert follows(vocabulary, grammar({"type": "object"}, strict=False), call(("p", "true", "x")))


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"type": "string", "description": "d"}, ("true", "any <thing>"), ("false", "1")),
        ({"type": "string", "pattern": "^[a-z]{2}$"}, ("false", '"ab"'), ("false", '"a1"')),
        ({"type": "string", "pattern": "^[a-z]{2}$"}, ("false", '"ab"'), ("true", "a1")),
        ({"type": "string", "maxLength": 2}, ("false", '"ab"'), ("false", '"abc"')),
        ({"type": "string", "format": "date"}, ("false", '"2026-01-31"'), ("true", "soon")),
        ({"type": "string", "const": "ab"}, ("true", "ab"), ("true", "abc")),
        ({"const": "ab"}, ("true", "ab"), ("true", "a")),
        ({"enum": ["C", "F"], "title": "unit"}, ("true", "C"), ("true", "K")),
        ({"enum": ["C", "FF"], "maxLength": 1}, ("false", '"C"'), ("true", "FF")),
    ],
)
@pytest.mark.parametrize("strict", [True, False])
def test_strings_keep_their_bounds(
    vocabulary: llguidance.LLTokenizer, schema: Any, good: tuple[str, str], bad: tuple[str, str], strict: bool
) -> None:
    made = grammar(one(schema), strict=strict)
    assert follows(vocabulary, made, call(("p", *good)))
    assert not follows(vocabulary, made, call(("p", *bad)))


def test_a_reference_at_the_top_is_followed(vocabulary: llguidance.LLTokenizer) -> None:
    made = grammar({"$ref": "#/$defs/node", "$defs": {"node": NODE}})
    assert follows(vocabulary, made, call(("x", "false", "1")))
    assert not follows(vocabulary, made, call(("x", "false", '"one"')))
    assert not follows(vocabulary, made, call())


@pytest.mark.parametrize(
    ("parameters", "path"),
    [
        ({"type": "object", "anyOf": [NODE, NODE]}, ".anyOf"),
        ({**NODE, "minProperties": 1}, ".minProperties"),
        ({**NODE, "patternProperties": {"^a": {"type": "string"}}}, ".patternProperties"),
        ({**NODE, "properties": {"x": {"$ref": "#"}}}, ".properties"),
        ({**NODE, "required": ["x", "y"], "additionalProperties": True}, ".required"),
    ],
)
def test_strict_tools_are_refused_for_what_the_markup_cannot_keep(parameters: Any, path: str) -> None:
    with pytest.raises(ApiError) as caught:
        grammar(parameters)
    assert (caught.value.status, caught.value.detail.code) == (400, "invalid_schema")
    assert caught.value.detail.param == f"tools[0].parameters{path}"
    assert grammar(parameters, strict=False)


def test_required_names_that_are_no_properties_are_demanded(vocabulary: llguidance.LLTokenizer) -> None:
    made = grammar({**NODE, "required": ["x", "y"]}, strict=False)
    assert follows(vocabulary, made, call(("x", "false", "1"), ("y", "false", "[]")))
    assert not follows(vocabulary, made, call(("x", "false", "1")))
