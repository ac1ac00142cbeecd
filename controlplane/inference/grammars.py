"""What an answer must look like, as a grammar: JSON by schema, a regex, or calls of the tools on offer.

Grammars are Lark texts in `llguidance`'s dialect (`workers.constraints` masks the logits with them). How a model writes
a tool call is its dialect's business: `Hermes` for ChatML and template models, `dsml.Dsml` for DeepSeek's.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Protocol

import llguidance

from controlplane.inference.errors import ApiError, invalid
from controlplane.inference.grammar_faults import grammar_fault, json_fault, schema_fault
from controlplane.inference.tool_text import CLOSE, OPEN

_JSON_STYLE = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""As `json.dumps` writes it; free whitespace would let a small model write blanks until its limit."""
_TEXT = "TEXT: /(.|\\n)*/\n"
ANY_OBJECT: dict[str, Any] = {"type": "object"}


@dataclass(frozen=True, slots=True)
class Tool:
    """A function on offer. `strict` ones follow their schema or are refused; others fall back to any object."""

    name: str
    description: str | None
    parameters: Any
    strict: bool


class Dialect(Protocol):
    def calls(self, tools: Sequence[Tool], *, required: bool, parallel: bool, answer: str = "") -> str:
        """Rules of a Lark grammar, `body` first: free text, then calls; only calls where `required`; calls or an
        `answer` (a Lark expression) where one is given.
        """


def text_of(value: str) -> str:
    """A Lark string."""
    return json.dumps(value, ensure_ascii=False)


def schema_of(schema: Any) -> str:
    """A Lark expression for JSON by `schema`."""
    guided = {**schema, "x-guidance": _JSON_STYLE} if isinstance(schema, dict) else schema
    return f"%json {json.dumps(guided, ensure_ascii=False)}"


def mark_of(spelling: str, control: Mapping[str, int]) -> str:
    """A Lark expression for a mark: the token of this spelling where the vocabulary has one, else the text.

    `llguidance` never lets text match an added token that is spelled `<...>`.
    """
    token = control.get(spelling)
    return text_of(spelling) if token is None else f"<[{token}]>"


def text_before(name: str, spelling: str, control: Mapping[str, int]) -> str:
    """A rule for free text up to and with a mark."""
    lazy = "" if spelling in control else "[lazy]"
    return f"{name}{lazy}: TEXT {mark_of(spelling, control)}"


class Hermes:
    """`<tool_call>`, newline, `{"name": ..., "arguments": ...}`, newline, `</tool_call>`; one after another."""

    def __init__(self, control: Mapping[str, int]) -> None:
        """`control`: the vocabulary's added tokens."""
        self._control = control

    def calls(self, tools: Sequence[Tool], *, required: bool, parallel: bool, answer: str = "") -> str:
        more = " rest*" if parallel else ""
        begin, end = text_of('\n{"name": '), text_of("}\n")
        rules = [
            "body: " + either(required, answer, text=f"TEXT | head call{more}", calls=f"open call{more}"),
            f"open: {mark_of(OPEN, self._control)}",
            text_before("head", OPEN, self._control),
            'rest: "\\n" open call',
            f"call: {begin} ({alternatives(tools)}) {end} {mark_of(CLOSE, self._control)}",
        ]
        for index, tool in enumerate(tools):
            begin = f'{json.dumps(tool.name, ensure_ascii=False)}, "arguments": '
            rules.append(f"t{index}: {text_of(begin)} {schema_of(usable_schema(tool, index))}")
        return "\n".join(rules) + "\n"


def either(required: bool, answer: str, *, text: str, calls: str) -> str:
    if required:
        return calls
    return f"{answer} | {calls}" if answer else text


def alternatives(tools: Sequence[Tool]) -> str:
    return " | ".join(f"t{index}" for index in range(len(tools)))


def usable_schema(tool: Tool, index: int) -> Any:
    """The schema that a tool's arguments follow. Raises ApiError (400) with the path, for strict tools only."""
    schema = tool.parameters if isinstance(tool.parameters, dict) else ANY_OBJECT
    if schema.get("type", "object") != "object":
        raise invalid(
            "A tool's parameters must be of type object.", param=f"tools[{index}].parameters", code="invalid_schema"
        )
    schema = {"type": "object", **schema}
    if not tool.strict:
        return schema if json_fault(schema) is None else ANY_OBJECT
    found = schema_fault(schema)
    if found is not None:
        raise schema_error(f"tools[{index}].parameters", *found)
    return schema


def schema_error(param: str, path: str, reason: str) -> ApiError:
    where = f"{param}{path}"
    return invalid(f"The JSON schema at `{where}` cannot be enforced: {reason}.", param=where, code="invalid_schema")


def json_answer(schema: Any, *, param: str) -> str:
    """`body` of a grammar for an answer by `schema`. Raises ApiError (400) with the path of what cannot be compiled."""
    return f"body: {answer_of(schema, param=param)}\n"


def answer_of(schema: Any, *, param: str) -> str:
    """A Lark expression for it."""
    found = schema_fault(schema)
    if found is not None:
        raise schema_error(param, *found)
    return schema_of(schema)


def regex_answer(pattern: str, *, param: str) -> str:
    fault = grammar_fault(llguidance.LLMatcher.grammar_from_regex(pattern))
    if fault is not None:
        reason = next((line for line in fault.splitlines() if line.startswith("error: ")), fault.splitlines()[0])
        raise invalid(f"The regular expression cannot be enforced: {reason}.", param=param, code="invalid_regex")
    return f"body: /{llguidance.regex_to_lark(pattern)}/\n"


def assemble(body: str, *, after: str | None = None, control: Mapping[str, int] = MappingProxyType({})) -> str:
    """The whole grammar around `body`; `after`: the mark that ends free text before it (a model's reasoning)."""
    start = "start: body\n"
    if after is not None:
        start = f"start: reasoning body\n{text_before('reasoning', after, control)}\n"
    grammar = start + body + _TEXT
    fault = grammar_fault(grammar)
    if fault is not None:
        raise invalid(f"The tools or the answer's format cannot be enforced: {fault[:500]}.", code="invalid_schema")
    return grammar
