"""From token ids to text that can be sent: never half a character, never part of a stop string."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from dataclasses import dataclass

from controlplane.inference.tokenization import ModelTokenizer


class IncrementalText:
    """Decodes a token stream. What was given out never changes: an incomplete UTF-8 sequence waits for its rest."""

    def __init__(self, tokenizer: ModelTokenizer) -> None:
        self._token_bytes = tokenizer.token_bytes
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token: int) -> str:
        """Text that `token` completes; an id outside the vocabulary adds none."""
        if not 0 <= token < len(self._token_bytes):
            return ""
        return self._decoder.decode(self._token_bytes[token])

    def finish(self) -> str:
        """The rest: U+FFFD where the output ended inside a character."""
        return self._decoder.decode(b"", final=True)


@dataclass(slots=True)
class Scanned:
    """`stop`: the stop string that was found behind `text`."""

    text: str
    stop: str | None = None

    @property
    def stopped(self) -> bool:
        return self.stop is not None


class StopScanner:
    """Finds the first of several stop strings in a text that comes in pieces.

    Holds back the longest end of the text that may be the beginning of a stop string. The stop string itself and what
    follows it are never given out.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._longest = max(map(len, self._stops), default=0)
        self._held = ""

    def push(self, text: str) -> Scanned:
        if not self._stops:
            return Scanned(text)
        text = self._held + text
        # The match that is complete first, whatever pieces the text came in; of two that end together the longer one.
        found = min(((at + len(stop), at, stop) for stop in self._stops if (at := text.find(stop)) >= 0), default=None)
        if found is not None:
            self._held = ""
            return Scanned(text[: found[1]], found[2])
        keep = self._possible_beginning(text)
        self._held = text[len(text) - keep :]
        return Scanned(text[: len(text) - keep])

    def _possible_beginning(self, text: str) -> int:
        """Length of the longest end of `text` with which a stop string may begin."""
        for length in range(min(self._longest - 1, len(text)), 0, -1):
            tail = text[-length:]
            if any(stop.startswith(tail) for stop in self._stops):
                return length
        return 0

    def finish(self) -> str:
        """What was held back for a stop string that never came."""
        held, self._held = self._held, ""
        return held
