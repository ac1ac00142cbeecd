"""What a model's output tokens mean: answer text, reasoning text, and where the text ends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import deepseek_recipe as recipe
import msgspec

from controlplane.inference.detokenize import IncrementalText, StopScanner
from controlplane.inference.tokenization import ModelTokenizer


@dataclass(slots=True)
class Piece:
    """Text that became certain. `tokens` of those given were used; `stopped`: a stop string ended the text."""

    content: str = ""
    reasoning: str = ""
    tokens: int = 0
    stopped: bool = False


class OutputParser(Protocol):
    """One per choice. `push` until a piece is `stopped` or the worker finishes; then `finish` once, unless stopped."""

    reasoning_tokens: int

    def push(self, tokens: Sequence[int]) -> Piece: ...

    def finish(self) -> Piece: ...


class PlainOutput:
    """Models whose output is the answer itself."""

    def __init__(self, tokenizer: ModelTokenizer, *, stops: Sequence[str], hidden: frozenset[int]) -> None:
        self._text = IncrementalText(tokenizer)
        self._scanner = StopScanner(stops)
        self._hidden = hidden
        self.reasoning_tokens = 0

    def push(self, tokens: Sequence[int]) -> Piece:
        piece = Piece()
        for token in tokens:
            piece.tokens += 1
            if token in self._hidden:
                continue
            scanned = self._scanner.push(self._text.push(token))
            piece.content += scanned.text
            if scanned.stopped:
                piece.stopped = True
                break
        return piece

    def finish(self) -> Piece:
        scanned = self._scanner.push(self._text.finish())
        if scanned.stopped:
            return Piece(content=scanned.text, stopped=True)
        return Piece(content=scanned.text + self._scanner.finish())


class RecipeOutput:
    """DeepSeek models: reasoning and answer told apart by `deepseek_recipe`'s stream processor.

    End-of-sequence tokens are not pushed (they would become text), nor ids outside the vocabulary.
    """

    def __init__(
        self,
        converted: recipe.ConversationRequest,
        tokenizer: recipe.Tokenizer,
        *,
        hidden: frozenset[int],
        vocab_size: int,
    ) -> None:
        generator = recipe.ChatCompletionRequest.chunk_generator(converted, "", "")
        self._processor = recipe.StreamProcessor(generator, converted.parsing_options, tokenizer)
        self._processor.push(recipe.InferenceChunk.ready(prompt_usage=recipe.PromptUsage()))
        self._hidden = hidden
        self._vocab_size = vocab_size
        self.reasoning_tokens = 0

    def push(self, tokens: Sequence[int]) -> Piece:
        piece = Piece()
        for token in tokens:
            piece.tokens += 1
            if token in self._hidden or not 0 <= token < self._vocab_size:
                continue
            self._absorb(piece, self._processor.push(recipe.InferenceChunk.tokens([token])))
            if self._processor.finished:
                piece.stopped = True
                break
        return piece

    def finish(self) -> Piece:
        piece = Piece()
        self._absorb(piece, self._processor.push(recipe.InferenceChunk.finish(recipe.InferenceFinishReason.Stop)))
        if not self._processor.finished:
            self._absorb(piece, self._processor.finish())
        return piece

    def _absorb(self, piece: Piece, chunks: Sequence[Any]) -> None:
        for chunk in chunks:
            document = msgspec.json.decode(chunk.to_json())
            for choice in document["choices"]:
                piece.content += choice["delta"].get("content") or ""
                piece.reasoning += choice["delta"].get("reasoning_content") or ""
            details = (document.get("usage") or {}).get("completion_tokens_details") or {}
            self.reasoning_tokens = details.get("reasoning_tokens") or self.reasoning_tokens
