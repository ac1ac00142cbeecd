"""A checked request, whatever protocol it came in."""

from __future__ import annotations

import enum
from typing import Any

import msgspec


class Protocol(enum.StrEnum):
    CHAT = "chat"
    COMPLETIONS = "completions"
    MESSAGES = "messages"
    RESPONSES = "responses"


class Call(msgspec.Struct, kw_only=True, frozen=True):
    """What the gateway acts on. `body` is what `deepseek_recipe` converts, with its roles and contents checked."""

    protocol: Protocol
    model: str
    body: dict[str, Any] = {}
    prompts: tuple[str | list[int], ...] = ()
    """Of legacy completions: texts or token ids, answered `choices` times each."""
    echo: bool = False
    """The answer begins with the prompt."""
    stream: bool = False
    include_usage: bool = False
    temperature: float | None = None
    top_p: float | None = None
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: dict[int, float] = {}
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    seed: int | None = None
    choices: int = 1
    logprobs: int | None = None
    """Alternatives to report beside each token; None reports nothing."""
    wants_thinking: bool | None = None
    """Asked for, forbidden, or left to the model."""
    parallel_tools: bool = True
    answer_schema: Any = None
    """JSON schema of the answer, where the conversion does not know the protocol's way of asking for one."""
    strict_answer: bool = False
    """`answer_schema` was asked for as a strict one: its objects take nothing that they do not name."""
    continues: bool = False
    """The last message is the beginning of the answer."""
    settings: dict[str, Any] = {}
    """What Responses report of the request."""

    @property
    def characters(self) -> int:
        """Roughly how much text is to be tokenized."""
        if self.protocol is Protocol.COMPLETIONS:
            return sum(len(prompt) for prompt in self.prompts)
        return _characters(self.body)


def _characters(value: Any) -> int:
    if isinstance(value, str):
        return len(value)
    if isinstance(value, dict):
        return sum(map(_characters, value.values()))
    return sum(map(_characters, value)) if isinstance(value, list) else 0
