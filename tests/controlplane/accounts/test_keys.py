from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.accounts import keys


def test_form_and_hash() -> None:
    raw, prefix = keys.generate()
    assert raw.startswith(f"gk-{prefix}-")
    assert len(raw) == 3 + 8 + 1 + 43
    assert keys.digest(raw) == hashlib.sha256(raw.encode()).hexdigest()


def test_no_two_are_equal() -> None:
    assert len({keys.generate()[0] for _ in range(200)}) == 200


@pytest.mark.parametrize(
    "raw", ["", "sk-abc", "gk-abcdefgh-short", "gk-ABCDEFGH-" + "a" * 43, "gk-abcdefgh-" + "a" * 44]
)
def test_what_is_no_key_has_no_hash(raw: str) -> None:
    assert keys.digest(raw) is None


@given(st.text())
def test_no_text_makes_it_stumble(raw: str) -> None:
    keys.digest(raw)


def test_a_newline_at_the_end_is_not_forgiven() -> None:
    assert keys.digest(keys.generate()[0] + "\n") is None
