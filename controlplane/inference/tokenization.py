"""A model's tokenizer as the gateway needs it: template text with control tokens, other text without, token bytes."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

TOKENIZER_NAME = "tokenizer.json"


class TokenizerError(Exception):
    """The model's tokenizer.json cannot be used; the message says why."""


@cache
def _byte_alphabet() -> dict[str, int]:
    """GPT-2's printable alphabet for bytes: character to byte value."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    alphabet = {chr(value): value for value in printable}
    others = (value for value in range(256) if value not in set(printable))
    alphabet.update({chr(256 + index): value for index, value in enumerate(others)})
    return alphabet


_BYTE_FALLBACK = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def _decoder_kinds(decoder: dict[str, Any] | None) -> set[str]:
    if decoder is None:
        return set()
    if decoder["type"] == "Sequence":
        return {kind for part in decoder["decoders"] for kind in _decoder_kinds(part)}
    return {decoder["type"]}


def _piece_bytes(piece: str, kinds: set[str]) -> bytes:
    """The bytes that one entry of the vocabulary stands for."""
    if "ByteLevel" in kinds:
        alphabet = _byte_alphabet()
        if all(character in alphabet for character in piece):
            return bytes(alphabet[character] for character in piece)
        return piece.encode()
    fallback = _BYTE_FALLBACK.fullmatch(piece)
    if fallback and "ByteFallback" in kinds:
        return bytes([int(fallback[1], 16)])
    return piece.replace("▁", " ").encode() if kinds & {"Metaspace", "Replace", "ByteFallback"} else piece.encode()


@dataclass(frozen=True, slots=True)
class ModelTokenizer:
    """Immutable and shared by all requests for a model; encoding is thread-safe.

    `token_bytes[id]` is what a token adds to the text: control tokens add nothing.
    `control` maps the spelling of every added token to its id.
    """

    plain: Tokenizer
    """Without the added tokens: no text that goes through it can become a control token."""
    control: dict[str, int]
    token_bytes: list[bytes]
    spellings: list[bytes]
    """As `token_bytes`, with control tokens spelled out (for log-probability reports)."""
    control_pattern: re.Pattern[str]

    @property
    def vocab_size(self) -> int:
        return len(self.token_bytes)

    def encode_foreign(self, text: str) -> list[int]:
        """Token ids of text from outside; a spelling such as `<|im_end|>` in it stays ordinary text."""
        return self.plain.encode(text, add_special_tokens=False).ids if text else []

    def encode_template(self, text: str, guard: str = "") -> list[int]:
        """Token ids of rendered text in which control tokens are meant, `guard` having been set where they are not."""
        ids: list[int] = []
        position = 0
        for match in self.control_pattern.finditer(text):
            ids += self._segment(text[position : match.start()], guard)
            ids.append(self.control[match[0]])
            position = match.end()
        return ids + self._segment(text[position:], guard)

    def _segment(self, text: str, guard: str) -> list[int]:
        return self.encode_foreign(text.replace(guard, "") if guard else text)


def load_tokenizer(folder: Path) -> ModelTokenizer:
    """Reads `tokenizer.json` of a model folder. Raises TokenizerError."""
    path = folder / TOKENIZER_NAME
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        return parse_tokenizer(document)
    except FileNotFoundError:
        raise TokenizerError(f"{path} is missing; remove the model and add it again") from None
    except (KeyError, TypeError, ValueError) as error:
        raise TokenizerError(f"{path} is damaged: {error}") from error


def parse_tokenizer(document: dict[str, Any]) -> ModelTokenizer:
    """`document` is the content of a tokenizer.json (Hugging Face `tokenizers` format)."""
    added = document.get("added_tokens") or []
    plain_document = {**document, "added_tokens": [], "post_processor": None, "truncation": None, "padding": None}
    try:
        plain = Tokenizer.from_str(json.dumps(plain_document))
    except Exception as error:
        raise TokenizerError(f"the tokenizer cannot be loaded: {error}") from error
    kinds = _decoder_kinds(document.get("decoder"))
    vocabulary: dict[str, int] = plain.get_vocab(with_added_tokens=False)
    size = max([*vocabulary.values(), *(token["id"] for token in added)], default=-1) + 1
    token_bytes = [b""] * size
    for piece, identifier in vocabulary.items():
        token_bytes[identifier] = _piece_bytes(piece, kinds)
    spellings = list(token_bytes)
    for token in added:
        spelling = token["content"].encode()
        spellings[token["id"]] = spelling
        token_bytes[token["id"]] = b"" if token["special"] else spelling
    control = {token["content"]: token["id"] for token in added if token["content"]}
    longest_first = sorted(control, key=len, reverse=True)
    pattern = re.compile("|".join(map(re.escape, longest_first)) if longest_first else r"(?!)")
    return ModelTokenizer(plain, control, token_bytes, spellings, pattern)
