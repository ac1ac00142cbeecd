"""Token id to compressed id, the vocabulary that Engram hashes over (V4.1 specification, section 3).

For each id in ascending order, its text (decoded alone, special tokens kept) is normalised: NFKC, NFD, accents
stripped, lower case, runs of white space to one space, outer white space stripped unless it is the whole text.
First-seen keys get consecutive ids. Where the text has U+FFFD the raw token is the key; where nothing is left, the
text as it was.

The normalisers are those of the `tokenizers` library: an imitation of them counts differently, and every multiplier
depends on the count.
"""

import json
from pathlib import Path

import torch

from workers.models.deepseek_v41.config import DeepseekV41Config
from workers.models.deepseek_v41.errors import TokenMapError

MAP_NAME = "token_map.json"
TOKENIZER_NAME = "tokenizer.json"
# Stands for a text that is one space while its outer white space is stripped.
SENTINEL = "\ue000"


def build_token_map(tokenizer_file: Path, vocab_size: int) -> list[int]:
    """The map of a tokenizer for ids 0 .. vocab_size - 1; ids without a token decode to nothing and share a key."""
    from tokenizers import Regex, Tokenizer, normalizers

    tokenizer = Tokenizer.from_file(str(tokenizer_file))
    normalizer = normalizers.Sequence(
        [
            normalizers.NFKC(),
            normalizers.NFD(),
            normalizers.StripAccents(),
            normalizers.Lowercase(),
            normalizers.Replace(Regex(r"[ \t\r\n]+"), " "),
            normalizers.Replace(Regex(r"^ $"), SENTINEL),
            normalizers.Strip(),
            normalizers.Replace(SENTINEL, " "),
        ]
    )
    keys: dict[str, int] = {}
    compressed = []
    for token in range(vocab_size):
        text = tokenizer.decode([token], skip_special_tokens=False)
        raw = tokenizer.id_to_token(token) if "\ufffd" in text else None
        key = raw or normalizer.normalize_str(text) or text
        compressed.append(keys.setdefault(key, len(keys)))
    return compressed


def load_token_map(folder: Path, config: DeepseekV41Config) -> torch.Tensor:
    """int64 [vocab_size], from `token_map.json` or else built from `tokenizer.json`.

    Raises `TokenMapError` when neither is there, or the entries or the number of compressed ids are not the
    configuration's.
    """
    if not config.engram_layer_ids:
        return torch.zeros(config.vocab_size, dtype=torch.int64)
    source = folder / MAP_NAME
    if source.exists():
        try:
            entries = json.loads(source.read_bytes())
        except ValueError as error:
            raise TokenMapError(f"{source}: not JSON: {error}") from error
        if not isinstance(entries, list) or not all(isinstance(n, int) for n in entries):
            raise TokenMapError(f"{source}: not a list of whole numbers")
    else:
        source = folder / TOKENIZER_NAME
        if not source.exists():
            raise TokenMapError(f"{folder}: holds neither {MAP_NAME} nor {TOKENIZER_NAME}, one of which Engram needs")
        entries = build_token_map(source, config.vocab_size)
    if len(entries) != config.vocab_size:
        raise TokenMapError(f"{source}: {len(entries)} entries for a vocabulary of {config.vocab_size}")
    distinct, wanted = len(set(entries)), config.engram_compressed_vocab_size
    if min(entries) < 0 or max(entries) >= wanted or distinct != wanted:
        raise TokenMapError(
            f"{source}: {distinct:,} compressed ids, but engram_compressed_vocab_size is {wanted:,}; "
            "this is not the tokenizer that the checkpoint was trained with"
        )
    return torch.tensor(entries, dtype=torch.int64)
