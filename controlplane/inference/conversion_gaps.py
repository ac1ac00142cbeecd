"""What the conversion of `deepseek_recipe` leaves out, put right around it."""

from __future__ import annotations

from typing import Any

import deepseek_recipe as recipe

from controlplane.inference.grammar_faults import closed
from controlplane.inference.grammars import Tool
from controlplane.inference.schema.call import Call


def tools_of(call: Call, conversation: recipe.Conversation) -> list[Tool]:
    """The tools on offer, with the schemas of the request: the library's strict ones lack lengths and counts."""
    asked = {}
    for tool in call.body.get("tools") or ():
        function = tool["function"] if isinstance(tool.get("function"), dict) else tool
        asked[function.get("name")] = function.get("parameters", function.get("input_schema"))
    tools = []
    for tool in conversation.tools:
        parameters = asked.get(tool.name, tool.parameters)
        strict = bool(tool.strict)
        tools.append(Tool(tool.name, tool.description, closed(parameters) if strict else parameters, strict=strict))
    return tools


def forces_call(body: dict[str, Any]) -> bool:
    choice = body.get("tool_choice")
    kind = choice.get("type") if isinstance(choice, dict) else choice
    return kind in ("required", "function", "any", "tool", "allowed_tools")


def amended(conversation: recipe.Conversation, *, schema: Any, continues: bool) -> recipe.Conversation:
    """The conversation with what the conversion of Messages leaves out."""
    messages = list(conversation.messages)
    if continues:
        last = messages[-1]
        messages[-1] = recipe.AssistantMessage(last.content, last.reasoning_content, last.tool_calls, prefix=True)
    return recipe.Conversation(
        messages,
        thinking_mode=conversation.thinking_mode,
        tools=conversation.tools,
        tool_choice=conversation.tool_choice,
        reasoning_effort=conversation.reasoning_effort,
        response_schema=schema,
    )
