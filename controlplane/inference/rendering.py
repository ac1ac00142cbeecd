"""Chat templates: from messages to token ids, with no way for a message's text to become a control token.

A template's own text may hold control tokens (`<|im_start|>`), a message's text may not. Before rendering, a guard
character is set into every control spelling inside messages; after rendering, only untouched spellings are
control tokens, and the guard is taken out again. The template sees the text, so it may trim or inspect it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import jinja2
import jinja2.sandbox

from controlplane.inference.errors import invalid
from controlplane.inference.tokenization import ModelTokenizer


@dataclass(frozen=True, slots=True)
class Turn:
    """One message as templates see it. `open` continues this (last) message instead of starting a new turn."""

    role: str
    content: str
    open: bool = False


class PromptRenderer(Protocol):
    def encode(self, turns: Sequence[Turn]) -> list[int]:
        """Token ids of the prompt, ending where the model's answer begins. Raises ApiError."""


_GUARDS = tuple(chr(code) for code in range(0xFDD0, 0xFDF0))
"""Unicode noncharacters: never assigned, and not in any text in practice."""


def pick_guard(texts: Sequence[str]) -> str:
    for guard in _GUARDS:
        if not any(guard in text for text in texts):
            return guard
    raise invalid("The messages contain every Unicode noncharacter from U+FDD0 to U+FDEF.", param="messages")


@dataclass(frozen=True, slots=True)
class TemplateRenderer:
    """Renders with `render(turns) -> text` and encodes the result."""

    tokenizer: ModelTokenizer
    render: Callable[[Sequence[Turn]], str]

    def encode(self, turns: Sequence[Turn]) -> list[int]:
        guard = pick_guard([turn.content for turn in turns])

        def guarded(text: str) -> str:
            return self.tokenizer.control_pattern.sub(lambda found: found[0][0] + guard + found[0][1:], text)

        text = self.render([Turn(turn.role, guarded(turn.content), turn.open) for turn in turns])
        return self.tokenizer.encode_template(text, guard)


def render_chatml(turns: Sequence[Turn]) -> str:
    """`<|im_start|>role`, newline, content, `<|im_end|>`, newline for each turn, then the beginning of the answer's."""
    parts = []
    for turn in turns:
        parts.append(f"<|im_start|>{turn.role}\n{turn.content}")
        if not turn.open:
            parts.append("<|im_end|>\n")
    if not turns[-1].open:
        parts.append("<|im_start|>assistant\n")
    return "".join(parts)


class TemplateError(Exception):
    """The model's chat template cannot be used; the message says why."""


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def jinja_render(template: str, special_tokens: dict[str, str]) -> Callable[[Sequence[Turn]], str]:
    """A render function from a Hugging Face chat template. `special_tokens`: `bos_token`, `eos_token` and the like."""
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.globals["raise_exception"] = _raise_exception
    try:
        compiled = environment.from_string(template)
    except jinja2.TemplateError as error:
        raise TemplateError(f"the chat template cannot be compiled: {error}") from error

    def render(turns: Sequence[Turn]) -> str:
        messages: list[dict[str, Any]] = [{"role": turn.role, "content": turn.content} for turn in turns]
        continued = turns[-1].open
        try:
            text = compiled.render(messages=messages, add_generation_prompt=not continued, **special_tokens)
        except jinja2.TemplateError as error:
            raise invalid(f"The model's chat template refuses these messages: {error}.", param="messages") from error
        return _cut_after(text, turns[-1].content) if continued else text

    return render


def _cut_after(text: str, content: str) -> str:
    """`text` up to the end of its last message's content: what the template adds there would close the turn."""
    at = text.rfind(content.strip())
    if at < 0:
        raise invalid("This model's chat template cannot continue an assistant message.", param="messages")
    return text[: at + len(content.strip())]
