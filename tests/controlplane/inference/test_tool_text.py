from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.inference.tool_text import CLOSE, OPEN, ToolSplitter

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
ARGUMENTS = st.dictionaries(st.text(max_size=4), VALUES, max_size=3)


def spelled(name: str, arguments: dict[str, Any]) -> str:
    return f'{OPEN}\n{{"name": {json.dumps(name)}, "arguments": {json.dumps(arguments)}}}\n{CLOSE}'


def split(pieces: list[str]) -> tuple[str, list[tuple[str, str]]]:
    splitter = ToolSplitter()
    text, calls = "", []
    for piece in [splitter.push(piece) for piece in pieces] + [splitter.finish()]:
        text += piece.text
        for delta in piece.tools:
            if delta.name:
                assert delta.id.startswith("call_")
                calls.append((delta.name, ""))
            calls[delta.index] = (calls[delta.index][0], calls[delta.index][1] + delta.arguments)
    return text, calls


@given(
    text=st.text(st.sampled_from("ab <tool_c>\n"), max_size=12),
    calls=st.lists(st.tuples(st.text(min_size=1, max_size=5), ARGUMENTS), max_size=3),
    cuts=st.integers(1, 7),
)
def test_the_same_calls_come_out_whatever_the_pieces(
    text: str, calls: list[tuple[str, dict[str, Any]]], cuts: int
) -> None:
    whole = text + "\n".join(spelled(name, arguments) for name, arguments in calls)
    found, made = split([whole[at : at + cuts] for at in range(0, len(whole), cuts)])
    assert found == text
    assert [(name, json.loads(arguments)) for name, arguments in made] == calls


@pytest.mark.parametrize("rest", ['{"city": "Par', '{"a": "}', "{"])
def test_arguments_that_were_cut_off_are_told_as_far_as_they_came(rest: str) -> None:
    text, calls = split([f'{OPEN}\n{{"name": "w", "arguments": {rest}'])
    assert (text, calls) == ("", [("w", rest)])


def test_a_call_cut_off_before_its_name_is_no_call_and_no_text() -> None:
    assert split(["Well. ", OPEN, '\n{"na']) == ("Well. ", [])


def test_text_that_only_begins_like_a_call_stays_text() -> None:
    assert split(["a <tool", "_x> <tool_ca"]) == ("a <tool_x> <tool_ca", [])
