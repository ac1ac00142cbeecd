"""Files of prompts: one prompt a line, as text or as JSON. Pure functions."""

from __future__ import annotations

import json
from typing import Any, Final

from controlplane.caching.errors import WarmRefused

MAX_FILE_BYTES: Final = 8 * 2**20
MAX_PROMPTS: Final = 2_000
ROLES: Final = ("system", "developer", "user", "assistant")

Messages = list[dict[str, str]]


def parse(data: bytes) -> list[Messages]:
    """Prompts of a file, each as messages. Empty lines are passed over.

    A line is `{"messages": [...]}`, `{"prompt": "..."}`, a JSON string, or plain text (one user message). Raises
    WarmRefused naming the line.
    """
    if len(data) > MAX_FILE_BYTES:
        raise WarmRefused(f"the file has {len(data)} bytes; at most {MAX_FILE_BYTES} are taken")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise WarmRefused(f"the file is not UTF-8 (byte {error.start})") from error
    prompts = [_line(number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
    if not prompts:
        raise WarmRefused("the file has no prompt")
    if len(prompts) > MAX_PROMPTS:
        raise WarmRefused(f"the file has {len(prompts)} prompts; at most {MAX_PROMPTS} are taken")
    return prompts


def _line(number: int, line: str) -> Messages:
    if line.lstrip()[0] not in '{"[':
        return [{"role": "user", "content": line}]
    try:
        value = json.loads(line)
    except json.JSONDecodeError as error:
        raise WarmRefused(f"line {number} starts like JSON and is none: {error}") from error
    if isinstance(value, str):
        return [{"role": "user", "content": value}]
    if isinstance(value, dict) and isinstance(value.get("prompt"), str):
        return [{"role": "user", "content": value["prompt"]}]
    messages = value.get("messages") if isinstance(value, dict) else value
    return check_messages(messages, f"line {number}")


def check_messages(messages: Any, where: str) -> Messages:
    """Messages with a role and text content. Raises WarmRefused."""
    if not isinstance(messages, list) or not messages:
        raise WarmRefused(f"{where}: give `messages`, `prompt`, or text")
    for message in messages:
        if not isinstance(message, dict) or message.get("role") not in ROLES:
            raise WarmRefused(f"{where}: a message needs a role of {', '.join(ROLES)}")
        if not isinstance(message.get("content"), str) or not message["content"]:
            raise WarmRefused(f"{where}: a message's content is text that is not empty")
    return [{"role": message["role"], "content": message["content"]} for message in messages]
