from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from controlplane.inference.detokenize import IncrementalText, StopScanner
from controlplane.inference.output import PlainOutput
from controlplane.inference.tokenization import parse_tokenizer
from tests.controlplane.inference.conftest import train_tokenizer

TOKENIZER = parse_tokenizer(json.loads(train_tokenizer().to_str()))


@given(st.text())
def test_pieces_make_the_text_and_never_half_a_character(text: str) -> None:
    incremental = IncrementalText(TOKENIZER)
    pieces = [incremental.push(token) for token in TOKENIZER.encode_foreign(text)]
    assert "".join(pieces) + incremental.finish() == text
    assert not any("\ufffd" in piece for piece in pieces) or "\ufffd" in text


@given(st.lists(st.integers(0, TOKENIZER.vocab_size - 1)))
def test_any_tokens_decode_as_their_bytes_do(tokens: list[int]) -> None:
    incremental = IncrementalText(TOKENIZER)
    text = "".join(incremental.push(token) for token in tokens) + incremental.finish()
    assert text == b"".join(TOKENIZER.token_bytes[token] for token in tokens).decode(errors="replace")


def test_ids_outside_the_vocabulary_add_nothing() -> None:
    incremental = IncrementalText(TOKENIZER)
    assert incremental.push(10**6) == ""
    assert incremental.push(-1) == ""


def _scan(pieces: list[str], stops: list[str]) -> tuple[str, bool]:
    scanner = StopScanner(stops)
    out = ""
    for piece in pieces:
        scanned = scanner.push(piece)
        out += scanned.text
        if scanned.stopped:
            return out, True
    return out + scanner.finish(), False


SMALL = st.text(alphabet="ab", min_size=1, max_size=4)


@given(st.lists(SMALL, max_size=12), st.lists(SMALL, max_size=3))
def test_where_it_stops_does_not_depend_on_the_pieces(pieces: list[str], stops: list[str]) -> None:
    whole = "".join(pieces)
    assert _scan(pieces, stops) == _scan(list(whole), stops)


@given(st.lists(SMALL, max_size=12), st.lists(SMALL, min_size=1, max_size=3))
def test_no_stop_string_is_ever_given_out(pieces: list[str], stops: list[str]) -> None:
    text, stopped = _scan(pieces, stops)
    assert not any(stop in text for stop in stops)
    assert stopped == any(stop in "".join(pieces) for stop in stops)


def test_a_beginning_that_comes_to_nothing_is_given_out() -> None:
    assert _scan(["Hello EN", "d"], ["END"]) == ("Hello ENd", False)
    assert _scan(["Hello EN"], ["END"]) == ("Hello EN", False)


def test_a_stop_string_across_tokens_counts_the_token_that_completed_it() -> None:
    tokens = TOKENIZER.encode_foreign("The kitchen") + TOKENIZER.encode_foreign("EN") + TOKENIZER.encode_foreign("D x")
    output = PlainOutput(TOKENIZER, stops=["END"], hidden=frozenset({2}))
    text, used = "", 0
    for token in tokens:
        piece = output.push([token])
        text, used = text + piece.content, used + piece.tokens
        if piece.stop:
            break
    assert text == "The kitchen"
    assert b"".join(TOKENIZER.token_bytes[t] for t in tokens[:used]).endswith(b"END")


def test_hidden_tokens_count_but_add_no_text() -> None:
    output = PlainOutput(TOKENIZER, stops=[], hidden=frozenset({2}))
    piece = output.push([*TOKENIZER.encode_foreign("hi"), 2])
    assert (piece.content, piece.tokens) == ("hi", len(TOKENIZER.encode_foreign("hi")) + 1)
