from __future__ import annotations

import json
from concurrent.futures import Future
from pathlib import Path

import llguidance
import pytest
import torch

from tests.controlplane.inference.conftest import write_tiny_model
from workers.constraints import Constraint, ConstraintError, Grammars
from workers.manifest import ModelManifest

LLMatcher = llguidance.LLMatcher


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ModelManifest]:
    folder = tmp_path_factory.mktemp("grammars") / "tiny"
    return folder, write_tiny_model(folder)


@pytest.fixture
def grammars(model: tuple[Path, ModelManifest]) -> Grammars:
    folder, manifest = model
    return Grammars(folder, eos_token_ids=manifest.eos_token_ids, vocab_size=manifest.vocab_size)


def allowed(constraint: object, outputs: list[int], vocabulary: int) -> set[int]:
    mask = torch.zeros(-(-vocabulary // 32), dtype=torch.int32)
    constraint.fill(outputs, mask.data_ptr(), mask.nbytes)  # type: ignore[attr-defined]
    return {token for token in range(vocabulary) if int(mask[token // 32]) >> (token % 32) & 1}


def test_a_regex_is_followed_to_its_end(grammars: Grammars, model: tuple[Path, ModelManifest]) -> None:
    vocabulary = model[1].vocab_size
    spell = llguidance.LLTokenizer(str(model[0] / "tokenizer.json"))
    constraint = grammars.constraint(LLMatcher.grammar_from_regex("ab"))
    a, b = spell.tokenize_str("a")[0], spell.tokenize_str("b")[0]
    assert a in allowed(constraint, [], vocabulary)
    assert b not in allowed(constraint, [], vocabulary)
    assert allowed(constraint, [a], vocabulary) == {b}
    assert allowed(constraint, [a, b], vocabulary) == {0, 2}  # the ends of sequence


def test_two_requests_of_one_grammar_do_not_touch_each_other(
    grammars: Grammars, model: tuple[Path, ModelManifest]
) -> None:
    vocabulary = model[1].vocab_size
    grammar = LLMatcher.grammar_from_json_schema(json.dumps({"enum": ["x", "y"]}))
    first, second = grammars.constraint(grammar), grammars.constraint(grammar)
    start = allowed(first, [], vocabulary)
    allowed(first, [next(iter(start))], vocabulary)
    assert allowed(second, [], vocabulary) == start


def test_tokens_that_the_grammar_forbids_are_an_error(grammars: Grammars, model: tuple[Path, ModelManifest]) -> None:
    constraint = grammars.constraint(LLMatcher.grammar_from_regex("ab"))
    with pytest.raises(ConstraintError, match="left its grammar"):
        allowed(constraint, [5, 5], model[1].vocab_size)


def test_a_fault_that_passes_is_not_kept(model: tuple[Path, ModelManifest], tmp_path: Path) -> None:
    folder, manifest = model
    grammars = Grammars(tmp_path, eos_token_ids=manifest.eos_token_ids, vocab_size=manifest.vocab_size)
    grammar = LLMatcher.grammar_from_regex("ab")
    with pytest.raises(ConstraintError, match="the tokenizer serves no constraints"):
        allowed(grammars.constraint(grammar), [], manifest.vocab_size)
    (tmp_path / "tokenizer.json").write_bytes((folder / "tokenizer.json").read_bytes())
    assert allowed(grammars.constraint(grammar), [], manifest.vocab_size)


def test_what_cannot_be_compiled_says_why(grammars: Grammars, model: tuple[Path, ModelManifest]) -> None:
    constraint = grammars.constraint(LLMatcher.grammar_from_regex("("))
    with pytest.raises(ConstraintError, match="unclosed group"):
        allowed(constraint, [], model[1].vocab_size)


def test_a_compiler_that_is_late_ends_the_request_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workers.constraints.COMPILE_DEADLINE_S", 0.01)
    with pytest.raises(ConstraintError, match="not compiled within"):
        allowed(Constraint(Future()), [], 32)


def test_a_compiler_that_breaks_ends_the_request_alone() -> None:
    broken: Future[llguidance.LLMatcher] = Future()
    broken.set_exception(ValueError("out of fuel"))
    with pytest.raises(ConstraintError, match="out of fuel"):
        allowed(Constraint(broken), [], 32)
