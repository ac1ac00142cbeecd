from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from tests.workers.smollm2 import chat, reference_folder

TEXTS = [
    "Hello world",
    " leading and  double  spaces \n\n\ttabs",
    "numbers 1234567890 and 3.14, 1e-5, 2024-12-31",
    "naïve café — “quotes” … 你好世界 🙂👩‍👩‍👧",
    "def f(x):\n    return x**2  # it's we'll I'm",
    "<|im_start|>user<|im_end|> is special, <|im_start is not",
    "",
]


@pytest.fixture(scope="module")
def tokenizer(smollm2_path: Path) -> Tokenizer:
    return Tokenizer.from_file(str(smollm2_path / "tokenizer.json"))


@pytest.fixture(scope="module")
def reference() -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(reference_folder())


@pytest.mark.parametrize("text", [*TEXTS, chat("What is 12 + 34?")])
def test_ids_equal_transformers(tokenizer: Tokenizer, reference: Any, text: str) -> None:
    assert tokenizer.encode(text).ids == reference(text).input_ids


@settings(max_examples=200, deadline=None)
@given(st.text(st.characters(max_codepoint=0x1FFFF, exclude_categories=["Cs", "Cc"]), max_size=60))
def test_text_comes_back(tokenizer: Tokenizer, text: str) -> None:
    """Without control characters and planes from 2 on: SmolLM2's vocabulary lacks some of their bytes."""
    assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False) == text


def test_special_tokens_are_one_id_each(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode("<|im_start|><|im_end|><|endoftext|>").ids == [1, 2, 0]
    assert tokenizer.get_vocab_size() == 49152


def test_digits_are_split_one_by_one(tokenizer: Tokenizer) -> None:
    assert len(tokenizer.encode("123456").ids) == 6
