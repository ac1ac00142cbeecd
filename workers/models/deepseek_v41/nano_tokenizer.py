"""The tokenizer of v41-nano: DeepSeek's pre-tokenizer and special tokens over a small byte-level BPE of our own.

Ids: bos 0, eos 1, pad 2, the 256 bytes, the merges of `nano_merges.txt` (learned from this project's texts), then the
special tokens in the order of the official vocabulary, V4.1's `<｜System｜>` among them.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tokenizers import Tokenizer

MERGES_FILE = Path(__file__).with_name("nano_merges.txt")

# The official split: digits by threes, CJK runs, words with one leading character, punctuation, line ends, blanks.
SPLITS = (
    r"\p{N}{1,3}",
    r"[一-龥\u3040-ゟ゠-ヿ]+",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+",
)
FIRST = ("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜▁pad▁｜>")
NOISE = "<｜place▁holder▁no▁799｜>"
IMAGE = "<｜image2｜>"
# Vision and control tokens that decoding leaves out; the others are part of the text a client may see.
HIDDEN = (
    NOISE, "<｜end_of_query｜>", "<｜rl_image_pad｜>", "<｜rl_image_start｜>", "<｜/polygon｜>", "<｜polygon｜>",
    "<｜/point｜>", "<｜point｜>", "<｜/box｜>", "<｜box｜>", "<｜/ref｜>", "<｜ref｜>", "<｜image｜>",
)  # fmt: skip
# The five from IMAGE on are the image sentinels.
LAST = (
    NOISE, "<｜fim▁hole｜>", "<｜fim▁begin｜>", "<｜fim▁end｜>", "<｜User｜>", "<｜Assistant｜>", "<|EOT|>",
    "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>",
    "<｜tool▁outputs▁begin｜>", "<｜tool▁outputs▁end｜>", "<｜tool▁output▁begin｜>", "<｜tool▁output▁end｜>",
    "<｜tool▁sep｜>", "<｜begin▁of▁repo▁name｜>", "<｜end▁of▁repo▁name｜>", "<｜begin▁of▁file▁name｜>",
    "<｜end▁of▁file▁name｜>", "<｜begin▁of▁file｜>", "<｜end▁of▁file｜>", "<think>", "</think>", "｜DSML｜",
    "<｜begin▁sys｜>", "<｜end▁sys｜>", "<｜System｜>", "<｜latest_reminder｜>", "<｜action｜>", "<｜query｜>",
    "<｜authority｜>", "<｜domain｜>", "<｜task｜>", "<｜political｜>", "<｜entity｜>", "<｜title｜>", "<｜safety｜>",
    "<｜answer｜>", "<｜search｜>", "<dsml:", "</dsml:", "<｜search▁begin｜>", "<｜search▁end｜>",
    "<｜extracted_url｜>", "<｜read_url｜>", "<｜end_of_query｜>", "<｜rl_image_pad｜>", "<｜rl_image_start｜>", IMAGE,
    "<｜/table>｜", "<｜table｜>", "<｜/td｜>", "<｜td｜>", "<｜/tr｜>", "<｜tr｜>", "<｜/polygon｜>", "<｜polygon｜>",
    "<｜/point｜>", "<｜point｜>", "<｜/box｜>", "<｜box｜>", "<｜/ref｜>", "<｜ref｜>", "<｜image｜>",
)  # fmt: skip


def build_tokenizer(vocab_size: int) -> Tokenizer:
    """The tokenizer with as many merges as leave room for the special tokens."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

    symbols = sorted(pre_tokenizers.ByteLevel.alphabet())
    room = vocab_size - len(FIRST) - len(symbols) - len(LAST)
    lines = MERGES_FILE.read_text(encoding="utf-8").splitlines()
    if not 0 <= room <= len(lines):
        raise ValueError(f"a vocabulary of {vocab_size} is out of reach with {len(lines)} merges")
    merges = [(left, right) for left, right in (line.split(" ") for line in lines[:room])]
    words = [*FIRST, *symbols, *(left + right for left, right in merges)]
    tokenizer = Tokenizer(models.BPE({word: i for i, word in enumerate(words)}, merges))
    splits = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in SPLITS]
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*splits, byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    hidden = {*FIRST, *HIDDEN}
    tokenizer.add_tokens([AddedToken(t, special=t in hidden, normalized=False) for t in (*FIRST, *LAST)])
    return tokenizer
