"""Tools in the prompts of ChatML and template models, which know no markup of their own for them.

The form is the widespread one of Hermes and Qwen: definitions in `<tools>` inside the system message, calls in
`<tool_call>`, results in `<tool_response>` of a user message.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

import deepseek_recipe as recipe

from controlplane.inference.grammars import Tool
from controlplane.inference.rendering import Turn
from controlplane.inference.tool_text import CLOSE, OPEN

_INSTRUCTIONS = """# Tools

You may call one or more functions to help with the user's request. The functions are described in <tools>, one JSON \
object a line:
<tools>
{definitions}
</tools>

To call a function, answer with its name and its arguments as a JSON object within <tool_call>:
<tool_call>
{{"name": "function-name", "arguments": {{"argument": "value"}}}}
</tool_call>"""
_SCHEMA = "Answer with JSON that follows this schema, and nothing else:\n{schema}"


def turns_of(
    messages: Iterable[recipe.Message], tools: Sequence[Tool], *, schema: Any = None, continues: bool = False
) -> list[Turn]:
    """The conversation in roles that every template knows: system, user, assistant."""
    turns: list[Turn] = []
    for message in messages:
        turn = _turn(message)
        results = turn.content.startswith("<tool_response>") and message.role == "tool"
        if results and turns and turns[-1].role == "user" and turns[-1].content.startswith("<tool_response>"):
            turns[-1] = Turn("user", f"{turns[-1].content}\n{turn.content}")
        else:
            turns.append(turn)
    instructions = _instructions(tools, schema)
    if instructions:
        first = turns[0] if turns and turns[0].role == "system" else None
        text = f"{first.content}\n\n{instructions}" if first else instructions
        turns = [Turn("system", text), *turns[1 if first else 0 :]]
    if continues and turns[-1].role == "assistant":
        turns[-1] = Turn("assistant", turns[-1].content, open=True)
    return turns


def _instructions(tools: Sequence[Tool], schema: Any) -> str:
    parts = []
    if tools:
        lines = [
            json.dumps(
                {
                    "type": "function",
                    "function": {"name": tool.name, "description": tool.description, "parameters": tool.parameters},
                },
                ensure_ascii=False,
            )
            for tool in tools
        ]
        parts.append(_INSTRUCTIONS.format(definitions="\n".join(lines)))
    if schema is not None:
        parts.append(_SCHEMA.format(schema=json.dumps(schema, ensure_ascii=False)))
    return "\n\n".join(parts)


def _turn(message: recipe.Message) -> Turn:
    if message.role == "tool":
        return Turn("user", f"<tool_response>\n{message.content}\n</tool_response>")
    role = message.role if message.role in ("system", "user", "assistant") else "system"
    calls = [
        f'{OPEN}\n{{"name": {json.dumps(call.name)}, "arguments": {call.arguments}}}\n{CLOSE}'
        for call in message.tool_calls or ()
    ]
    text = "\n".join([*([message.content] if message.content else []), *calls])
    return Turn(role, text, message.prefix)
