"""How a schema's fault is found, and how little is compiled for it."""

from __future__ import annotations

from typing import Any

import pytest

from controlplane.inference import grammar_faults
from controlplane.inference.grammar_faults import SEARCH_COMPILATIONS, grammar_fault, json_fault, schema_fault


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The grammars that are compiled from now on; nothing is remembered of earlier ones."""
    texts: list[str] = []
    real = grammar_faults._compile

    def counted(grammar: str) -> str | None:
        texts.append(grammar)
        return real(grammar)

    monkeypatch.setattr(grammar_faults, "_compile", counted)
    monkeypatch.setattr(grammar_faults, "_verdicts", grammar_faults._Verdicts())
    return texts


def wide(parts: int, bad: int) -> dict[str, Any]:
    named = {f"p{at}": {"type": "strng" if at == bad else "string", "description": "d" * 50} for at in range(parts)}
    return {"type": "object", "properties": named}


@pytest.mark.parametrize("bad", [0, 1, 149, 298, 299])
def test_the_search_compiles_few_parts(compiled: list[str], bad: int) -> None:
    found = schema_fault(wide(300, bad))
    assert found is not None
    assert found[0] == f".properties.p{bad}"
    assert len(compiled) <= 12


def test_the_search_is_bounded(compiled: list[str]) -> None:
    """A deep schema costs one compilation for each of its levels; it is given up some way down."""
    schema: dict[str, Any] = {"type": "strng"}
    for _ in range(SEARCH_COMPILATIONS + 20):
        schema = {"type": "array", "items": schema}
    found = schema_fault(schema)
    assert found is not None
    assert found[0] == ".items" * SEARCH_COMPILATIONS
    assert len(compiled) == SEARCH_COMPILATIONS + 1


def test_verdicts_are_kept_errors_too(compiled: list[str]) -> None:
    fine, bad = wide(3, -1), wide(3, 1)
    assert (json_fault(fine), schema_fault(bad)) == (None, schema_fault(bad))
    assert grammar_fault("start: (") == grammar_fault("start: (") is not None
    before = len(compiled)
    json_fault(fine)
    schema_fault(bad)
    assert len(compiled) == before
    assert len(set(compiled)) == before


def test_old_verdicts_go_first(compiled: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammar_faults, "KEPT_VERDICTS", 2)
    for text in ('start: "a"', 'start: "b"', 'start: "a"', 'start: "c"', 'start: "a"', 'start: "b"'):
        grammar_fault(text)
    assert compiled == ['start: "a"', 'start: "b"', 'start: "c"', 'start: "b"']
