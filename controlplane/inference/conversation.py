"""From a checked request to token ids: `deepseek_recipe` converts, the model's own format renders.

What the library leaves to us: it knows only its own models' names (the model is given an alias), one choice
(`n` is fanned out elsewhere), no `developer` role (`schema` maps it), and its errors carry no parameter
(`schema` checks before it).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import deepseek_recipe as recipe

from controlplane.inference.errors import context_length, invalid
from controlplane.inference.output import OutputParser, PlainOutput, RecipeOutput
from controlplane.inference.rendering import PromptRenderer, TemplateRenderer, Turn, jinja_render, render_chatml
from controlplane.inference.schema import ChatCall
from controlplane.inference.tokenization import TOKENIZER_NAME, ModelTokenizer, load_tokenizer
from workers.manifest import ModelManifest

_ALIAS = "model"
_NO_BOUND = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Prompt:
    """Ready to be sent to workers. `new_output` makes a parser for one choice."""

    tokens: list[int]
    max_tokens: int
    temperature: float
    top_p: float
    new_output: Callable[[], OutputParser]


class UnsupportedModel(Exception):
    """The gateway cannot speak to this model; the message says why."""


@dataclass(frozen=True, slots=True)
class ChatModel:
    """Everything the gateway needs of one model; immutable, shared by all requests for it."""

    manifest: ModelManifest
    tokenizer: ModelTokenizer
    renderer: PromptRenderer | None
    """For template formats; None where `deepseek_recipe` renders and encodes."""
    encoding: recipe.DeepseekV41Encoding | None
    recipe_tokenizer: recipe.Tokenizer | None

    @property
    def thinks(self) -> bool:
        return self.encoding is not None

    def prepare(self, call: ChatCall, context_limit: int) -> Prompt:
        """The prompt of `call`. CPU-bound. Raises ApiError (400) for what the model cannot take."""
        converted = self._convert(call)
        tokens = self._encode(converted)
        # The library resolves these for DeepSeek's models (a thinking model samples at 1.0, whatever was asked for).
        chosen = converted.inference_options if self.thinks else call
        return Prompt(
            tokens=tokens,
            max_tokens=self._max_tokens(call, converted, len(tokens), context_limit),
            temperature=1.0 if chosen.temperature is None else chosen.temperature,
            top_p=1.0 if chosen.top_p is None else chosen.top_p,
            new_output=lambda: self._new_output(call),
        )

    def _convert(self, call: ChatCall) -> recipe.ConversationRequest:
        body: dict[str, Any] = {"model": _ALIAS, "messages": call.messages, "stream": call.stream}
        for name in ("temperature", "top_p", "max_tokens", "seed"):
            value = getattr(call, name)
            if value is not None:
                body[name] = value
        if call.stop:
            body["stop"] = list(call.stop)
        if self.thinks:
            body |= {name: value for name in ("thinking", "reasoning_effort") if (value := getattr(call, name))}
        elif call.thinking and call.thinking.get("type") == "enabled":
            raise invalid(f"`thinking` is not available: {self.manifest.name} does not think.", param="thinking")
        options = (
            recipe.ConversionOptions(
                default_thinking_mode=self.thinks,
                thinking_max_tokens_upper_bound=_NO_BOUND,
                non_thinking_max_tokens_upper_bound=_NO_BOUND,
            )
        ).with_model_versions_by_name({_ALIAS: recipe.ModelVersion.DeepseekV41Flash})
        try:
            return recipe.ChatCompletionRequest(body).convert(options)
        except (recipe.ConversionError, ValueError) as error:
            raise invalid(f"{error}") from error

    def _encode(self, converted: recipe.ConversationRequest) -> list[int]:
        conversation = converted.conversation
        if self.encoding is not None:
            return self.encoding.encode(conversation)
        assert self.renderer is not None
        turns = [Turn(message.role, message.content, message.prefix) for message in conversation.messages]
        return self.renderer.encode(turns)

    @staticmethod
    def _max_tokens(call: ChatCall, converted: recipe.ConversationRequest, prompt: int, context_limit: int) -> int:
        if prompt + (call.max_tokens or 1) > context_limit:
            raise context_length(limit=context_limit, prompt=prompt, output=call.max_tokens)
        return converted.resolve_max_tokens(prompt, context_limit)

    def _new_output(self, call: ChatCall) -> OutputParser:
        hidden = frozenset(self.manifest.eos_token_ids)
        if self.recipe_tokenizer is None:
            return PlainOutput(self.tokenizer, stops=call.stop, hidden=hidden)
        # Conversion objects serve one parser each: convert once more for every choice.
        converted, vocabulary = self._convert(call), self.tokenizer.vocab_size
        return RecipeOutput(converted, self.recipe_tokenizer, hidden=hidden, vocab_size=vocabulary)


def load_chat_model(folder: Path, manifest: ModelManifest) -> ChatModel:
    """Reads the tokenizer (a second or so for large ones). Raises UnsupportedModel, TokenizerError, TemplateError."""
    tokenizer = load_tokenizer(folder)
    renderer: PromptRenderer
    match manifest.chat_format:
        case "chatml" if manifest.chat_template is None:
            renderer = TemplateRenderer(tokenizer, render_chatml)
        case "chatml" | "jinja":
            if manifest.chat_template is None:
                raise UnsupportedModel(f"{manifest.name} has no chat template; add it again with one")
            renderer = TemplateRenderer(tokenizer, jinja_render(manifest.chat_template, _named_tokens(manifest)))
        case "deepseek_v41":
            shared = recipe.Tokenizer.from_file(str(folder / TOKENIZER_NAME))
            encoding = recipe.DeepseekV41Encoding().with_tokenizer(shared)
            return ChatModel(manifest, tokenizer, None, encoding, shared)
        case other:
            raise UnsupportedModel(f"{manifest.name} has chat format {other!r}, which the gateway does not render")
    return ChatModel(manifest, tokenizer, renderer, None, None)


def _named_tokens(manifest: ModelManifest) -> dict[str, str]:
    """`bos_token` and `eos_token` for templates, by the spellings in the manifest."""
    spelling = {identifier: text for text, identifier in manifest.special_tokens.items()}
    eos = manifest.eos_token_ids[0] if manifest.eos_token_ids else None
    named = {"bos_token": manifest.bos_token_id, "eos_token": eos}
    return {name: spelling[identifier] for name, identifier in named.items() if identifier in spelling}
