"""A Hugging Face `tokenizer.json` made from a GGUF file's vocabulary and merges."""

from __future__ import annotations

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from workers.models.gguf_file import GGUFError, GGUFFile

_CONTROL = 3
_USER_DEFINED = 4
_BYTE_LEVEL = "gpt2"
_DIGITS_THEN_BYTES = frozenset({"smollm", "starcoder", "refact", "command-r", "codeshell"})
"""Values of `tokenizer.ggml.pre` for: digits one by one, then GPT-2's byte-level splitting."""


def build_tokenizer(file: GGUFFile) -> Tokenizer:
    """Raises GGUFError for a tokenizer other than byte-level BPE with digits split one by one."""
    kind = file.require("tokenizer.ggml.model")
    pre = file.get("tokenizer.ggml.pre", "default")
    if kind != _BYTE_LEVEL or pre not in _DIGITS_THEN_BYTES:
        raise GGUFError(f"{file.path.name}: the tokenizer {kind}/{pre} is not supported")
    tokens: list[str] = file.require("tokenizer.ggml.tokens")
    types: list[int] = file.require("tokenizer.ggml.token_type")
    merges = [tuple(pair.split(" ", 1)) for pair in file.require("tokenizer.ggml.merges")]
    tokenizer = Tokenizer(models.BPE(vocab={token: index for index, token in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=bool(file.get("tokenizer.ggml.add_space_prefix", False))),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    special = [token for token, kind in zip(tokens, types, strict=True) if kind in (_CONTROL, _USER_DEFINED)]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    if tokenizer.get_vocab_size() != len(tokens):
        raise GGUFError(f"{file.path.name}: the special tokens are not in the vocabulary")
    return tokenizer


def special_tokens(file: GGUFFile) -> dict[str, int]:
    types: list[int] = file.require("tokenizer.ggml.token_type")
    tokens: list[str] = file.require("tokenizer.ggml.tokens")
    return {token: index for index, token in enumerate(tokens) if types[index] in (_CONTROL, _USER_DEFINED)}
