"""What an answer must look like, as a grammar: JSON by schema, a regex, or calls of the tools on offer.

Grammars are Lark texts in `llguidance`'s dialect (`workers.constraints` masks the logits with them). How a model writes
a tool call is its dialect's business: `Hermes` for ChatML and template models, `Dsml` for DeepSeek's.
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
            "body: " + _choice(required, answer, text=f"TEXT | head call{more}", calls=f"open call{more}"),
            f"open: {mark_of(OPEN, self._control)}",
            text_before("head", OPEN, self._control),
            'rest: "\\n" open call',
            f"call: {begin} ({_alternatives(tools)}) {end} {mark_of(CLOSE, self._control)}",
        ]
        for index, tool in enumerate(tools):
            begin = f'{json.dumps(tool.name, ensure_ascii=False)}, "arguments": '
            rules.append(f"t{index}: {text_of(begin)} {schema_of(usable_schema(tool, index))}")
        return "\n".join(rules) + "\n"


class Dsml:
    """DeepSeek's markup: strings as they are, everything else as JSON, one element for each parameter."""

    def __init__(self, mark: str) -> None:
        """`mark` is the spelling of the DSML token."""
        self._open = f"<{mark} "
        self._close = f"</{mark} "

    def calls(self, tools: Sequence[Tool], *, required: bool, parallel: bool, answer: str = "") -> str:
        """Where a call is required the prompt has opened the block already."""
        block_open, block_close = text_of(f"\n\n{self._open}calls>\n"), text_of(f"{self._close}calls>")
        invoke_close, value_close = text_of(f"{self._close}invoke>\n"), text_of(f"{self._close}parameter>\n")
        calls = f"invoke+ {block_close}" if parallel else f"invoke {block_close}"
        opened = calls if required else f"{block_open} {calls}"
        rules = [
            "body: " + _choice(required, answer, text=f"TEXT | head {calls}", calls=opened),
            f"head[lazy]: TEXT {block_open}",
            f"invoke: ({_alternatives(tools)}) {invoke_close}",
            f"value[lazy]: TEXT {value_close}",
            f"parameter_end: {value_close}",
        ]
        for index, tool in enumerate(tools):
            rules += self._tool(index, tool)
        return "\n".join(rules) + "\n"

    def _tool(self, index: int, tool: Tool) -> list[str]:
        schema = usable_schema(tool, index)
        properties = schema.get("properties") or {}
        definitions = {name: schema[name] for name in ("$defs", "definitions") if name in schema}
        required = set(schema.get("required") or ())
        head = text_of(f'{self._open}invoke name="{tool.name}">\n')
        if not properties:
            return [f"t{index}: {head} (any_{index})*", *self._anything(index)]
        parts = [f"t{index}_{at}{'' if name in required else '?'}" for at, name in enumerate(properties)]
        return [f"t{index}: {head} {' '.join(parts)}"] + [
            f"t{index}_{at}: {self._parameter(name, wanted, definitions)}"
            for at, (name, wanted) in enumerate(properties.items())
        ]

    def _parameter(self, name: str, schema: Any, definitions: Mapping[str, Any]) -> str:
        named = f'{self._open}parameter name="{name}" string='
        as_text, as_json = text_of(f'{named}"true">'), text_of(f'{named}"false">')
        if isinstance(schema, dict) and isinstance(schema.get("enum"), list) and _strings(schema["enum"]):
            values = " | ".join(text_of(value) for value in schema["enum"])
            return f"{as_text} ({values}) parameter_end"
        if isinstance(schema, dict) and schema.get("type") == "string":
            return f"{as_text} value"
        whole = {**schema, **definitions} if isinstance(schema, dict) else schema
        return f"{as_json} {schema_of(whole)} parameter_end"

    def _anything(self, index: int) -> list[str]:
        """A parameter of any name and value, for tools that name none."""
        begin = text_of(f'{self._open}parameter name="')
        as_text, as_json = text_of('" string="true">'), text_of('" string="false">')
        return [f'any_{index}: {begin} /[^"\\n<>]+/ ({as_text} value | {as_json} %json {{}} parameter_end)']


def _choice(required: bool, answer: str, *, text: str, calls: str) -> str:
    if required:
        return calls
    return f"{answer} | {calls}" if answer else text


def _alternatives(tools: Sequence[Tool]) -> str:
    return " | ".join(f"t{index}" for index in range(len(tools)))


def _strings(values: Sequence[Any]) -> bool:
    return bool(values) and all(isinstance(value, str) and value for value in values)


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
