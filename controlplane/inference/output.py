"""What a model's output tokens mean: answer text, reasoning text, tool calls, and where the text ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import deepseek_recipe as recipe
import msgspec

from controlplane.inference.detokenize import IncrementalText, StopScanner
from controlplane.inference.tokenization import ModelTokenizer
from controlplane.inference.tool_text import ToolDelta, ToolSplitter


@dataclass(slots=True)
class Piece:
    """Text that became certain. `tokens` of those given were used; `stop`: the stop string that ended the text."""

    content: str = ""
    reasoning: str = ""
    tools: list[ToolDelta] = field(default_factory=list)
    tokens: int = 0
    stop: str | None = None


class OutputParser(Protocol):
    """One per choice. `push` until a piece has a `stop` or the worker finishes; then `finish` once, unless stopped."""

    reasoning_tokens: int
    tool_calls: int
    """Calls that have begun."""

    def push(self, tokens: Sequence[int]) -> Piece: ...

    def finish(self) -> Piece: ...


class PlainOutput:
    """Models whose output is the answer itself, tool calls marked in it (`splitter`)."""

    def __init__(
        self,
        tokenizer: ModelTokenizer,
        *,
        stops: Sequence[str],
        hidden: frozenset[int],
        splitter: ToolSplitter | None = None,
    ) -> None:
        self._text = IncrementalText(tokenizer)
        self._scanner = StopScanner(stops)
        self._hidden = hidden
        self._splitter = splitter
        self.reasoning_tokens = 0
        self.tool_calls = 0

    def push(self, tokens: Sequence[int]) -> Piece:
        piece = Piece()
        for token in tokens:
            piece.tokens += 1
            if token not in self._hidden:
                self._take(piece, self._text.push(token))
                if piece.stop is not None:
                    break
        return piece

    def finish(self) -> Piece:
        piece = Piece()
        self._take(piece, self._text.finish())
        if self._splitter is not None and piece.stop is None:
            self._scan(piece, self._splitter.finish().text)
        if piece.stop is None:
            piece.content += self._scanner.finish()
        return piece

    def _take(self, piece: Piece, text: str) -> None:
        if self._splitter is not None:
            split = self._splitter.push(text)
            piece.tools += split.tools
            self.tool_calls += sum(1 for delta in split.tools if delta.name)
            text = split.text
        self._scan(piece, text)

    def _scan(self, piece: Piece, text: str) -> None:
        """Stop strings are looked for in the answer; a tool's arguments may hold them."""
        if not text:
            return
        scanned = self._scanner.push(text)
        piece.content += scanned.text
        piece.stop = scanned.stop


class RecipeOutput:
    """DeepSeek models: reasoning, answer and tool calls told apart by `deepseek_recipe`'s stream processor.

    End-of-sequence tokens are not pushed (they would become text), nor ids outside the vocabulary. Stop strings are
    looked for here, in the answer: the library does not say which one it found. One conversion serves any number of
    parsers: they share no state.
    """

    def __init__(
        self,
        converted: recipe.ConversationRequest,
        tokenizer: recipe.Tokenizer,
        *,
        stops: Sequence[str],
        hidden: frozenset[int],
        vocab_size: int,
    ) -> None:
        options = converted.parsing_options
        options.stop_sequences = []
        generator = recipe.ChatCompletionRequest.chunk_generator(converted, "", "")
        self._processor = recipe.StreamProcessor(generator, options, tokenizer)
        self._processor.push(recipe.InferenceChunk.ready(prompt_usage=recipe.PromptUsage()))
        self._scanner = StopScanner(stops)
        self._hidden = hidden
        self._vocab_size = vocab_size
        self.reasoning_tokens = 0
        self.tool_calls = 0

    def push(self, tokens: Sequence[int]) -> Piece:
        piece = Piece()
        for token in tokens:
            piece.tokens += 1
            if token in self._hidden or not 0 <= token < self._vocab_size:
                continue
            self._absorb(piece, self._processor.push(recipe.InferenceChunk.tokens([token])))
            if piece.stop is not None:
                break
        return piece

    def finish(self) -> Piece:
        piece = Piece()
        self._absorb(piece, self._processor.push(recipe.InferenceChunk.finish(recipe.InferenceFinishReason.Stop)))
        if not self._processor.finished:
            self._absorb(piece, self._processor.finish())
        if piece.stop is None:
            piece.content += self._scanner.finish()
        return piece

    def _absorb(self, piece: Piece, chunks: Sequence[Any]) -> None:
        for chunk in chunks:
            document = msgspec.json.decode(chunk.to_json())
            for choice in document["choices"]:
                self._delta(piece, choice["delta"])
            details = (document.get("usage") or {}).get("completion_tokens_details") or {}
            self.reasoning_tokens = details.get("reasoning_tokens") or self.reasoning_tokens

    def _delta(self, piece: Piece, delta: dict[str, Any]) -> None:
        piece.reasoning += delta.get("reasoning_content") or ""
        for call in delta.get("tool_calls") or ():
            function = call.get("function") or {}
            name = function.get("name") or ""
            self.tool_calls += bool(name)
            piece.tools.append(
                ToolDelta(call["index"], id=call.get("id") or "", name=name, arguments=function.get("arguments") or "")
            )
        text = delta.get("content")
        if text and piece.stop is None:
            scanned = self._scanner.push(text)
            piece.content += scanned.text
            piece.stop = scanned.stop


NewOutput = Callable[[], OutputParser]
