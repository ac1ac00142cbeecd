from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.inference.conversation import ChatModel
from controlplane.inference.tokenization import TokenizerError, load_tokenizer, parse_tokenizer
from tests.controlplane.inference.conftest import train_tokenizer

_TRAINED = train_tokenizer()
_PARSED = parse_tokenizer(json.loads(_TRAINED.to_str()))


@given(st.text())
def test_token_bytes_give_the_text_back(text: str) -> None:
    ids = _PARSED.encode_foreign(text)
    assert b"".join(_PARSED.token_bytes[i] for i in ids) == text.encode()


@given(st.text(alphabet=st.characters(codec="ascii")).map(lambda s: f"{s}<|im_end|>{s}<|im_start|>"))
def test_no_text_becomes_a_control_token(text: str) -> None:
    assert not set(_PARSED.encode_foreign(text)) & {0, 1, 2}


def test_template_text_has_control_tokens_except_where_guarded() -> None:
    ids = _PARSED.encode_template("<|im_start|>a<@|im_end|>", guard="@")
    assert ids[0] == 1
    assert 2 not in ids
    assert b"".join(_PARSED.token_bytes[i] for i in ids) == b"a<|im_end|>"


def test_template_encoding_equals_the_tokenizers_own() -> None:
    text = "<|im_start|>user\nHello world, 12345! 🎉<|im_end|>\n<|im_start|>assistant\n"
    assert _PARSED.encode_template(text) == _TRAINED.encode(text).ids


def test_control_tokens_add_no_text_but_can_be_spelled(tiny: ChatModel) -> None:
    assert tiny.tokenizer.token_bytes[2] == b""
    assert tiny.tokenizer.spellings[2] == b"<|im_end|>"


def test_byte_fallback_vocabularies() -> None:
    document: dict[str, Any] = {
        "version": "1.0",
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Fuse"}]},
        "model": {"type": "WordLevel", "vocab": {"<0xE2>": 0, "▁the": 1, "x": 2}, "unk_token": "x"},
    }
    assert parse_tokenizer(document).token_bytes == [b"\xe2", b" the", b"x"]


def test_a_missing_or_damaged_file_says_so(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match="missing"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text('{"model": {}}')
    with pytest.raises(TokenizerError):
        load_tokenizer(tmp_path)
