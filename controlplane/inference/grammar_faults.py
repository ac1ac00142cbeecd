"""JSON schemas before they become grammars: closed where they are strict, and why one cannot be compiled.

Verdicts are kept, errors too: agents send the same tools with every request.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections import OrderedDict
from typing import Any

import llguidance

from workers.constraints import LIMITS, MAX_GRAMMAR_BYTES

KEPT_VERDICTS = 4096
"""Least recently used go first; a digest and perhaps a message each."""
MAX_REASON_CHARS = 500
SEARCH_COMPILATIONS = 64
"""Most that the search for the part at fault compiles; then the part found so far is named."""

# Keywords of JSON schema that hold schemas: by name, in a list, or one.
_SCHEMAS_BY_NAME = ("properties", "patternProperties", "$defs", "definitions")
_SCHEMA_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_SCHEMAS = ("items", "additionalProperties")


def closed(schema: Any) -> Any:
    """`schema` with every object closed to properties that it does not name, which is what strictness means."""
    if not isinstance(schema, dict):
        return schema
    made = {name: _closed_keyword(name, value) for name, value in schema.items()}
    if isinstance(made.get("properties"), dict):
        made.setdefault("additionalProperties", False)
    return made


def _closed_keyword(name: str, value: Any) -> Any:
    if name in _SCHEMAS_BY_NAME and isinstance(value, dict):
        return {key: closed(part) for key, part in value.items()}
    if name in _SCHEMA_LISTS and isinstance(value, list):
        return [closed(part) for part in value]
    return closed(value) if name in _SCHEMAS else value


def schema_fault(schema: Any) -> tuple[str, str] | None:
    """(path inside the schema, reason) of the innermost part that cannot be compiled; None where all of it can."""
    reason = json_fault(schema)
    return None if reason is None else _Search(schema).innermost(reason)


class _Search:
    """Halves the parts of a schema until one is left that cannot be compiled, then looks inside that one.

    Each compilation carries the schema's definitions, so their number is what costs: it grows with the logarithm of the
    number of parts, and is bounded.
    """

    def __init__(self, schema: Any) -> None:
        self._schema = schema
        names = ("$defs", "definitions") if isinstance(schema, dict) else ()
        self._definitions = {name: schema[name] for name in names if name in schema}
        self._left = SEARCH_COMPILATIONS

    def innermost(self, reason: str) -> tuple[str, str]:
        path, current = "", self._schema
        while (inner := self._inside(current)) is not None:
            step, current, reason = inner
            path += step
        return path, reason

    def _inside(self, schema: Any) -> tuple[str, Any, str] | None:
        parts = _parts(schema)
        while len(parts) > 1:
            half = len(parts) // 2
            together = {str(at): part for at, (_, part) in enumerate(parts[:half])}
            probe = {"type": "object", "properties": together, "required": list(together)}
            if self._left <= 0:
                return None
            parts = parts[half:] if self._fault(probe) is None else parts[:half]
        for step, part in parts:
            if (reason := self._fault(part)) is not None:
                return step, part, reason
        return None

    def _fault(self, part: Any) -> str | None:
        if self._left <= 0:
            return None
        self._left -= 1
        return json_fault({**self._definitions, **part} if isinstance(part, dict) else part)


def _parts(schema: Any) -> list[tuple[str, Any]]:
    if not isinstance(schema, dict):
        return []
    parts: list[tuple[str, Any]] = []
    for name in _SCHEMAS_BY_NAME:
        if isinstance(schema.get(name), dict):
            parts += [(f".{name}.{key}", value) for key, value in schema[name].items()]
    for name in _SCHEMA_LISTS:
        if isinstance(schema.get(name), list):
            parts += [(f".{name}[{at}]", value) for at, value in enumerate(schema[name])]
    return parts + [(f".{name}", schema[name]) for name in _SCHEMAS if name in schema]


def json_fault(schema: Any) -> str | None:
    try:
        return grammar_fault(llguidance.LLMatcher.grammar_from_json_schema(json.dumps(schema)))
    except ValueError as error:
        return str(error)


def _compile(grammar: str) -> str | None:
    failed, messages = llguidance.LLMatcher.validate_grammar_with_warnings(grammar, limits=LIMITS)
    return messages[0][:MAX_REASON_CHARS] if failed else None


class _Verdicts:
    """Why grammars cannot be compiled, by digest of their texts. Threads share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: OrderedDict[bytes, str | None] = OrderedDict()

    def of(self, grammar: str) -> str | None:
        digest = hashlib.sha256(grammar.encode(errors="surrogatepass")).digest()
        with self._lock:
            if digest in self._kept:
                self._kept.move_to_end(digest)
                return self._kept[digest]
        verdict = _compile(grammar)
        with self._lock:
            self._kept[digest] = verdict
            if len(self._kept) > KEPT_VERDICTS:
                self._kept.popitem(last=False)
        return verdict


_verdicts = _Verdicts()


def grammar_fault(grammar: str) -> str | None:
    """Why `grammar` cannot be compiled; None where it can."""
    if len(grammar) > MAX_GRAMMAR_BYTES:
        return f"it is larger than {MAX_GRAMMAR_BYTES} characters"
    return _verdicts.of(grammar)
