"""From a checked request to token ids: `deepseek_recipe` converts, the model's own format renders.

What the library leaves to us: it knows only its own models' names (the model is given an alias), one choice
(`n` is fanned out elsewhere), no `developer` role and no limits on contents (`schema` checks before it), no schema for
answers of the Messages protocol, no answer that begins in the request there, and its errors carry no parameter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import deepseek_recipe as recipe

from controlplane.inference.conversion_gaps import amended, forces_call, tools_of
from controlplane.inference.dsml import Dsml
from controlplane.inference.errors import context_length, invalid
from controlplane.inference.grammar_faults import closed
from controlplane.inference.grammars import (
    Dialect,
    Hermes,
    Tool,
    answer_of,
    assemble,
    json_answer,
    regex_answer,
)
from controlplane.inference.output import NewOutput, OutputParser, PlainOutput, RecipeOutput
from controlplane.inference.rendering import PromptRenderer, TemplateRenderer, jinja_render, render_chatml
from controlplane.inference.schema.call import Call, Protocol
from controlplane.inference.tokenization import TOKENIZER_NAME, ModelTokenizer, load_tokenizer
from controlplane.inference.tool_prompt import turns_of
from controlplane.inference.tool_text import ToolSplitter
from workers.manifest import ModelManifest

_ALIAS = "model"
_NO_BOUND = 2**31 - 1
_REQUESTS: dict[Protocol, Any] = {
    Protocol.CHAT: recipe.ChatCompletionRequest,
    Protocol.MESSAGES: recipe.MessagesRequest,
    Protocol.RESPONSES: recipe.ResponsesRequest,
}
_LIMIT_NAME = {Protocol.RESPONSES: "max_output_tokens"}
_FORMAT_NAME = {
    Protocol.CHAT: "response_format.json_schema.schema",
    Protocol.MESSAGES: "output_config.format.schema",
    Protocol.RESPONSES: "text.format.schema",
}


@dataclass(frozen=True, slots=True)
class Prompt:
    """Ready to be sent to workers. `new_output` makes a parser for one try of one choice; it costs little."""

    tokens: list[int]
    max_tokens: int
    temperature: float
    top_p: float
    grammar: str
    """What the output must follow; empty leaves it free."""
    thinking: bool
    new_output: NewOutput


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

    def prepare(self, call: Call, context_limit: int) -> list[Prompt]:
        """The prompts of `call`: one, but for legacy completions. CPU-bound. Raises ApiError (400) for what the model
        cannot take.
        """
        self._check_bias(call)
        if call.protocol is Protocol.COMPLETIONS:
            return [self._legacy(call, prompt, context_limit) for prompt in call.prompts]
        return [self._conversation(call, context_limit)]

    def count_tokens(self, call: Call) -> int:
        """Tokens of the prompt alone."""
        converted = self._convert(call)
        return len(self._encode(call, converted, tools_of(call, converted.conversation)))

    # --- conversations -------------------------------------------------------------------------------------------

    def _conversation(self, call: Call, context_limit: int) -> Prompt:
        converted = self._convert(call)
        conversation = converted.conversation
        tools = tools_of(call, conversation)
        grammar = self._grammar(call, converted, tools)
        tokens = self._encode(call, converted, tools)
        # The library resolves these for DeepSeek's models (a thinking model samples at 1.0, whatever was asked for).
        chosen = converted.inference_options if self.thinks else call
        return Prompt(
            tokens=tokens,
            max_tokens=self._max_tokens(call, converted, len(tokens), context_limit),
            temperature=1.0 if chosen.temperature is None else chosen.temperature,
            top_p=1.0 if chosen.top_p is None else chosen.top_p,
            grammar=grammar,
            thinking=self.thinks and conversation.thinking_mode,
            new_output=lambda: self._new_output(call, converted, calls_tools=bool(tools)),
        )

    def _convert(self, call: Call) -> recipe.ConversationRequest:
        body = {"model": _ALIAS, **call.body}
        for name in ("temperature", "top_p"):
            if (value := getattr(call, name)) is not None:
                body[name] = value
        limit = _LIMIT_NAME.get(call.protocol, "max_tokens")
        # Counting needs no limit, the library's Messages do.
        body[limit] = call.max_tokens or (1 if call.protocol is Protocol.MESSAGES else None)
        self._settle_thinking(call, body)
        options = (
            recipe.ConversionOptions(
                default_thinking_mode=self.thinks,
                thinking_max_tokens_upper_bound=_NO_BOUND,
                non_thinking_max_tokens_upper_bound=_NO_BOUND,
            )
        ).with_model_versions_by_name({_ALIAS: recipe.ModelVersion.DeepseekV41Flash})
        try:
            return _REQUESTS[call.protocol](body).convert(options)
        except (recipe.ConversionError, ValueError) as error:
            raise invalid(f"{error}", code="invalid_value") from error

    def _settle_thinking(self, call: Call, body: dict[str, Any]) -> None:
        """Models that do not think are not asked to. Others think by default, but not before a call that is forced."""
        if not self.thinks:
            if call.wants_thinking:
                raise invalid(f"`thinking` is not available: {self.manifest.name} does not think.", param="thinking")
            for name in ("thinking", "reasoning_effort", "reasoning", "output_config"):
                body.pop(name, None)
        elif call.protocol is Protocol.RESPONSES:
            if call.wants_thinking is False or (forces_call(body) and "reasoning" not in body):
                body["reasoning"] = {"effort": "none"}
        elif forces_call(body) and call.wants_thinking is None:
            body["thinking"] = {"type": "disabled"}
            body.pop("reasoning_effort", None)
            body.pop("output_config", None)

    def _encode(self, call: Call, converted: recipe.ConversationRequest, tools: Sequence[Tool]) -> list[int]:
        conversation = converted.conversation
        schema = call.answer_schema
        if self.encoding is not None:
            if schema is not None or call.continues:
                conversation = amended(conversation, schema=schema, continues=call.continues)
            return self.encoding.encode(conversation)
        assert self.renderer is not None
        shown = conversation.response_schema if schema is None else schema
        return self.renderer.encode(turns_of(conversation.messages, tools, schema=shown, continues=call.continues))

    def _grammar(self, call: Call, converted: recipe.ConversationRequest, tools: Sequence[Tool]) -> str:
        conversation = converted.conversation
        body = self._answer_body(call, converted, tools)
        if not body:
            return ""
        thinking = self.thinks and conversation.thinking_mode
        after = recipe.SpecialToken.ThinkingEnd.default_str() if thinking else None
        return assemble(body, after=after, control=self.tokenizer.control)

    def _answer_body(self, call: Call, converted: recipe.ConversationRequest, tools: Sequence[Tool]) -> str:
        conversation = converted.conversation
        param = _FORMAT_NAME[call.protocol]
        wanted = conversation.response_schema if call.answer_schema is None else call.answer_schema
        schema = closed(wanted) if call.strict_answer else wanted
        if tools:
            answer = "" if call.answer_schema is None else answer_of(schema, param=param)
            required = conversation.tool_choice == "required"
            return self._dialect.calls(tools, required=required, parallel=call.parallel_tools, answer=answer)
        if call.answer_schema is not None:
            return json_answer(schema, param=param)
        match conversation.response_format:
            case "json_schema":
                return json_answer(schema, param=param)
            case "regex":
                return regex_answer(conversation.response_regex or "", param="response_format.regex")
        return ""

    @property
    def _dialect(self) -> Dialect:
        return Dsml(recipe.SpecialToken.Dsml.default_str()) if self.thinks else Hermes(self.tokenizer.control)

    @staticmethod
    def _max_tokens(call: Call, converted: recipe.ConversationRequest, prompt: int, context_limit: int) -> int:
        if call.protocol is Protocol.MESSAGES and call.max_tokens is not None:
            # Required there, so clients send what their favourite model can do: a bound, not a wish.
            _check_context(prompt, None, context_limit)
            return min(call.max_tokens, context_limit - prompt)
        _check_context(prompt, call.max_tokens, context_limit)
        return converted.resolve_max_tokens(prompt, context_limit)

    def _new_output(self, call: Call, converted: recipe.ConversationRequest, *, calls_tools: bool) -> OutputParser:
        hidden = frozenset(self.manifest.eos_token_ids)
        if self.recipe_tokenizer is None:
            splitter = ToolSplitter() if calls_tools else None
            return PlainOutput(self.tokenizer, stops=call.stop, hidden=hidden, splitter=splitter)
        vocabulary = self.tokenizer.vocab_size
        return RecipeOutput(converted, self.recipe_tokenizer, stops=call.stop, hidden=hidden, vocab_size=vocabulary)

    # --- texts ---------------------------------------------------------------------------------------------------

    def _legacy(self, call: Call, prompt: str | list[int], context_limit: int) -> Prompt:
        if isinstance(prompt, str):
            tokens = self.tokenizer.encode_foreign(prompt)
            if self.thinks and self.manifest.bos_token_id is not None:
                tokens = [self.manifest.bos_token_id, *tokens]
        else:
            tokens = prompt
            if any(not 0 <= token < self.manifest.vocab_size for token in tokens):
                raise invalid(
                    f"`prompt` holds token ids outside the vocabulary of {self.manifest.vocab_size}.",
                    param="prompt",
                    code="invalid_value",
                )
        if not tokens:
            raise invalid("`prompt` must not be empty.", param="prompt", code="invalid_value")
        _check_context(len(tokens), call.max_tokens, context_limit)
        assert call.max_tokens is not None
        hidden = frozenset(self.manifest.eos_token_ids)
        return Prompt(
            tokens=tokens,
            max_tokens=call.max_tokens,
            temperature=1.0 if call.temperature is None else call.temperature,
            top_p=1.0 if call.top_p is None else call.top_p,
            grammar="",
            thinking=False,
            new_output=lambda: PlainOutput(self.tokenizer, stops=call.stop, hidden=hidden),
        )

    def _check_bias(self, call: Call) -> None:
        for token in call.logit_bias:
            if token >= self.manifest.vocab_size:
                raise invalid(
                    f"Token {token} is outside the vocabulary of {self.manifest.vocab_size}.",
                    param="logit_bias",
                    code="invalid_value",
                )


def _check_context(prompt: int, output: int | None, context_limit: int) -> None:
    if prompt + (output or 1) > context_limit:
        raise context_length(limit=context_limit, prompt=prompt, output=output)


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
