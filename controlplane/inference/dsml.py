"""Calls in DeepSeek's markup as a grammar: one element for each parameter, in the order of the schema's properties.

The markup has no object around the parameters, so only what a list of named parameters can keep is enforced: an object
with its properties, closed where the tool is strict. Anything else is refused for strict tools; others lose it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from controlplane.inference.errors import invalid
from controlplane.inference.grammars import ANY_OBJECT, Tool, alternatives, either, schema_of, text_of, usable_schema

_DEFINITIONS = ("$defs", "definitions")
_NOTES = frozenset(
    {"$comment", "$id", "$schema", "default", "deprecated", "description", "examples", "readOnly", "title", "writeOnly"}
)
"""Keywords that allow and forbid nothing."""
_OBJECT = frozenset({"type", "properties", "required", "additionalProperties", *_DEFINITIONS})
"""What a list of parameters can keep."""


class Dsml:
    """Strings as they are where any text will do or some are named, everything else as JSON."""

    def __init__(self, mark: str) -> None:
        """`mark` is the spelling of the DSML token."""
        self._open = f"<{mark} "
        self._close = f"</{mark} "

    def calls(self, tools: Sequence[Tool], *, required: bool, parallel: bool, answer: str = "") -> str:
        """Where a call is required the prompt has opened the block already. Raises ApiError (400)."""
        block_open, block_close = text_of(f"\n\n{self._open}calls>\n"), text_of(f"{self._close}calls>")
        invoke_close, value_close = text_of(f"{self._close}invoke>\n"), text_of(f"{self._close}parameter>\n")
        calls = f"invoke+ {block_close}" if parallel else f"invoke {block_close}"
        opened = calls if required else f"{block_open} {calls}"
        rules = [
            "body: " + either(required, answer, text=f"TEXT | head {calls}", calls=opened),
            f"head[lazy]: TEXT {block_open}",
            f"invoke: ({alternatives(tools)}) {invoke_close}",
            f"value[lazy]: TEXT {value_close}",
            f"parameter_end: {value_close}",
        ]
        for index, tool in enumerate(tools):
            rules += self._tool(index, tool)
        return "\n".join(rules) + "\n"

    def _tool(self, index: int, tool: Tool) -> list[str]:
        schema = _parameters(tool, index)
        properties = schema.get("properties") or {}
        definitions = {name: schema[name] for name in _DEFINITIONS if name in schema}
        required = set(schema.get("required") or ())
        head = text_of(f'{self._open}invoke name="{tool.name}">\n')
        if not properties:
            if tool.strict or schema.get("additionalProperties") is False:
                return [f"t{index}: {head}"]
            return [f"t{index}: {head} (any_{index})*", *self._anything(index)]
        parts = [f"t{index}_{at}{'' if name in required else '?'}" for at, name in enumerate(properties)]
        return [f"t{index}: {head} {' '.join(parts)}"] + [
            f"t{index}_{at}: {self._parameter(name, wanted, definitions)}"
            for at, (name, wanted) in enumerate(properties.items())
        ]

    def _parameter(self, name: str, schema: Any, definitions: Mapping[str, Any]) -> str:
        named = f'{self._open}parameter name="{name}" string='
        as_text, as_json = text_of(f'{named}"true">'), text_of(f'{named}"false">')
        texts = _texts(schema)
        if texts:
            return f"{as_text} ({' | '.join(text_of(value) for value in texts)}) parameter_end"
        if texts is not None:
            return f"{as_text} value"
        whole = {**schema, **definitions} if isinstance(schema, dict) else schema
        return f"{as_json} {schema_of(whole)} parameter_end"

    def _anything(self, index: int) -> list[str]:
        """A parameter of any name and value, for tools that name none."""
        begin = text_of(f'{self._open}parameter name="')
        as_text, as_json = text_of('" string="true">'), text_of('" string="false">')
        return [f'any_{index}: {begin} /[^"\\n<>]+/ ({as_text} value | {as_json} %json {{}} parameter_end)']


def _texts(schema: Any) -> list[str] | None:
    """The strings that `schema` names, empty where any will do; None where the value is to be JSON: other types, and
    strings with a pattern, a format or a length, which only the grammar of JSON keeps.
    """
    if not isinstance(schema, dict):
        return None
    means = {name: value for name, value in schema.items() if name not in _NOTES}
    if means == {"type": "string"}:
        return []
    if means.pop("type", "string") != "string" or len(means) != 1:
        return None
    named = [means["const"]] if "const" in means else means.get("enum")
    plain = isinstance(named, list) and all(isinstance(value, str) and value for value in named)
    return named or None if plain else None


def _parameters(tool: Tool, index: int) -> dict[str, Any]:
    """The schema of the arguments, with all that is required among its properties. Raises ApiError (400) for strict
    tools that ask for what the markup cannot keep.
    """
    schema = usable_schema(tool, index)
    root = _resolved(schema)
    fault = _unkept(root)
    if fault is not None and tool.strict:
        where = f"tools[{index}].parameters{fault}"
        raise invalid(
            f"The JSON schema at `{where}` cannot be enforced: this model's tools take an object of named properties, "
            "with references to definitions only.",
            param=where,
            code="invalid_schema",
        )
    if any(_foreign(value) for value in root.values()):
        return ANY_OBJECT
    named = root.get("properties") or {}
    more = root.get("additionalProperties", {})
    missing = {name: more for name in root.get("required") or () if name not in named}
    return {**root, "properties": {**named, **missing}} if missing else root


def _resolved(schema: dict[str, Any]) -> dict[str, Any]:
    """The object itself, where the schema is a reference to one of its definitions."""
    for _ in range(len(schema.get("$defs") or {}) + len(schema.get("definitions") or {})):
        kept = {name: schema[name] for name in _DEFINITIONS if name in schema}
        group, _, name = str(schema.get("$ref", "")).removeprefix("#/").partition("/")
        target = (kept.get(group) or {}).get(name)
        beside = set(schema) - _NOTES - {"$ref", "type", *_DEFINITIONS}
        if beside or not isinstance(target, dict) or target.get("type", "object") != "object":
            break
        schema = {"type": "object", **target, **kept}
    return schema


def _unkept(schema: dict[str, Any]) -> str | None:
    """The path of what a list of parameters cannot keep of an object's schema."""
    for name, value in schema.items():
        if name not in _OBJECT | _NOTES:
            return f".{name}"
        if _foreign(value):
            return f".{name}"
    named = schema.get("properties") or {}
    return ".required" if any(name not in named for name in schema.get("required") or ()) else None


def _foreign(value: Any) -> bool:
    """Whether a reference inside leads elsewhere than to a definition: each parameter is compiled by itself."""
    return any(not reference.startswith(("#/$defs/", "#/definitions/")) for reference in _references(value))


def _references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for name, inner in value.items():
            if name == "$ref" and isinstance(inner, str):
                yield inner
            else:
                yield from _references(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _references(inner)
