"""Biases, penalties and grammars on a real engine, alone, in company and across a suspension."""

from __future__ import annotations

import concurrent.futures
import json

import llguidance
import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from tests.workers.engine.factories import make_request, some_tokens
from tests.workers.engine.test_sampler import VOCABULARY, make_sequence
from workers.constraints import Constraint
from workers.engine.adjustments import adjusted
from workers.engine.sampler import sample_rows


@pytest.fixture(scope="module")
def vocabulary() -> llguidance.LLTokenizer:
    """Bytes only: token 0 ends the sequence."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={"<end>": 0, **{c: i + 1 for i, c in enumerate(alphabet)}}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<end>"])
    return llguidance.LLTokenizer(tokenizer.to_str(), n_vocab=VOCABULARY, eos_token=0)


def constraint(vocabulary: llguidance.LLTokenizer, grammar: str) -> Constraint:
    compiled: concurrent.futures.Future[llguidance.LLMatcher] = concurrent.futures.Future()
    compiled.set_result(llguidance.LLMatcher(vocabulary, grammar))
    return Constraint(compiled)


def test_nothing_wished_for_leaves_the_very_logits() -> None:
    logits = torch.randn(2, VOCABULARY)
    assert adjusted(logits, [make_sequence(), make_sequence()]) == (logits, {})


def test_bias_and_penalties_change_their_own_row_only() -> None:
    logits = torch.zeros(3, VOCABULARY)
    biased = make_sequence(logit_bias={7: 2.0, 10**6: 5.0})
    repeating = make_sequence(presence_penalty=0.5, frequency_penalty=0.25)
    repeating.tokens += [9, 9, 11]
    changed, faults = adjusted(logits, [biased, repeating, make_sequence()])
    assert not faults
    assert (changed[0, 7], changed[0].sum()) == (2.0, 2.0)
    assert (changed[1, 9], changed[1, 11], changed[1].sum()) == (-1.0, -0.75, -1.75)
    assert not changed[2].any()
    assert not logits.any()


def test_a_bias_of_minus_100_bans_and_of_100_forces() -> None:
    rows = sample_rows(torch.randn(2, VOCABULARY), [make_sequence(logit_bias={3: 100}), make_sequence()])
    assert rows[0].token == 3


def test_constrained_rows_stay_within_their_grammars_in_a_batch(vocabulary: llguidance.LLTokenizer) -> None:
    """Random logits, three requests at a time: what comes out is always valid."""
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"],
              "additionalProperties": False}  # fmt: skip
    grammar = llguidance.LLMatcher.grammar_from_json_schema(
        json.dumps(schema), overrides={"whitespace_flexible": False}
    )
    sequences = [make_sequence(seed=index) for index in range(3)]
    sequences[0].request.constraint = constraint(vocabulary, grammar)
    sequences[2].request.constraint = constraint(vocabulary, llguidance.LLMatcher.grammar_from_regex("(ab|cd)+x"))
    live = list(sequences)
    for _ in range(400):
        logits = torch.randn(len(live), VOCABULARY)
        for sequence, sampled in zip(list(live), sample_rows(logits, live), strict=True):
            assert sampled.token is not None, sampled.fault
            sequence.tokens.append(sampled.token)
            if sampled.token == 0:
                live.remove(sequence)
        if sequences[0] not in live and sequences[2] not in live:
            break
    texts = [vocabulary.decode_str(s.tokens[s.prompt_tokens : -1]) for s in sequences]
    assert isinstance(json.loads(texts[0])["n"], int)
    assert set(texts[2][:-1]) <= set("abcd")
    assert texts[2].endswith("x")


def test_a_constraint_follows_tokens_that_another_worker_sampled(vocabulary: llguidance.LLTokenizer) -> None:
    sequence = make_sequence()
    sequence.request.constraint = constraint(vocabulary, llguidance.LLMatcher.grammar_from_regex("abc"))
    sequence.tokens += vocabulary.tokenize_str("ab")
    (sampled,) = sample_rows(torch.randn(1, VOCABULARY), [sequence])
    assert sampled.token == vocabulary.tokenize_str("c")[0]


def test_an_output_outside_its_grammar_fails_alone(vocabulary: llguidance.LLTokenizer) -> None:
    lost, other = make_sequence(), make_sequence()
    lost.request.constraint = constraint(vocabulary, llguidance.LLMatcher.grammar_from_regex("abc"))
    lost.tokens += vocabulary.tokenize_str("zz")
    failed, fine = sample_rows(torch.randn(2, VOCABULARY), [lost, other])
    assert failed.token is None
    assert "left its grammar" in failed.fault
    assert fine.token is not None
    assert not make_request(some_tokens(2)).constraint
