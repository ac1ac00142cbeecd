"""Anthropic's Messages: content blocks, named events, errors in their own envelope."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from controlplane.inference.completion import Completion, Update, Usage
from controlplane.inference.errors import ApiError
from controlplane.inference.messages_errors import error_body
from controlplane.inference.replies.base import Answer, Reply, encode, named_event
from controlplane.inference.tool_text import ToolDelta

_PING = b'event: ping\ndata: {"type":"ping"}\n\n'
_STOP_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}
"""`insufficient_system_resource` has no counterpart: the answer was cut, as by a limit."""


def stop_reason(finish_reason: str | None, stop_sequence: str | None) -> str:
    if stop_sequence is not None:
        return "stop_sequence"
    return _STOP_REASONS.get(finish_reason or "stop", "max_tokens")


def usage_body(usage: Usage) -> dict[str, Any]:
    """`input_tokens` is what was not cached. Nothing is written to a cache at the client's expense."""
    return {
        "input_tokens": usage.miss_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.hit_tokens,
        "output_tokens": usage.output_tokens,
    }


def tool_id(call_id: str) -> str:
    return "toolu_" + call_id.removeprefix("call_")


class MessagesFormat:
    keep_alive = _PING

    def __init__(self, reply: Reply) -> None:
        self._reply = reply
        self._blocks = 0
        """Blocks begun so far; the last one is open where `_open` names its kind."""
        self._open = ""
        self._answer = Answer()

    # --- streams -------------------------------------------------------------------------------------------------

    def begin(self, completion: Completion) -> bytes:
        message = {**self._message(completion, [], None, None)}
        return named_event("message_start", {"type": "message_start", "message": message})

    def update(self, completion: Completion, update: Update) -> bytes:
        self._answer.finish_reason = update.finish_reason or self._answer.finish_reason
        self._answer.stop_sequence = update.stop_sequence or self._answer.stop_sequence
        events = b""
        if update.reasoning:
            events += self._switch("thinking", {"type": "thinking", "thinking": "", "signature": ""})
            events += self._delta({"type": "thinking_delta", "thinking": update.reasoning})
        if update.content:
            events += self._switch("text", {"type": "text", "text": ""})
            events += self._delta({"type": "text_delta", "text": update.content})
        for delta in update.tools:
            events += self._tool(delta)
        return events

    def end(self, completion: Completion) -> bytes:
        empty = b"" if self._blocks else self._switch("text", {"type": "text", "text": ""})
        answer = self._answer
        delta = {
            "stop_reason": stop_reason(answer.finish_reason, answer.stop_sequence),
            "stop_sequence": answer.stop_sequence,
        }
        usage = usage_body(completion.usage)
        return (
            empty
            + self._close()
            + named_event("message_delta", {"type": "message_delta", "delta": delta, "usage": usage})
            + named_event("message_stop", {"type": "message_stop"})
        )

    def error(self, error: ApiError) -> bytes:
        return named_event("error", error_body(error, f"req_{self._reply.id}"))

    def _switch(self, kind: str, block: dict[str, Any]) -> bytes:
        """Open a block of `kind`, unless one is open."""
        if self._open == kind:
            return b""
        closed = self._close()
        self._open = kind
        self._blocks += 1
        start = {"type": "content_block_start", "index": self._blocks - 1, "content_block": block}
        return closed + named_event("content_block_start", start)

    def _close(self) -> bytes:
        if not self._open:
            return b""
        signature = b""
        if self._open == "thinking":
            signature = self._delta({"type": "signature_delta", "signature": self._reply.id})
        self._open = ""
        return signature + named_event("content_block_stop", {"type": "content_block_stop", "index": self._blocks - 1})

    def _delta(self, delta: dict[str, Any]) -> bytes:
        body = {"type": "content_block_delta", "index": self._blocks - 1, "delta": delta}
        return named_event("content_block_delta", body)

    def _tool(self, delta: ToolDelta) -> bytes:
        events = b""
        if delta.name:
            block = {"type": "tool_use", "id": tool_id(delta.id), "name": delta.name, "input": {}}
            events += self._close() + self._switch("tool_use", block)
        if delta.arguments:
            events += self._delta({"type": "input_json_delta", "partial_json": delta.arguments})
        return events

    # --- whole ---------------------------------------------------------------------------------------------------

    def whole(self, completion: Completion, answers: Sequence[Answer]) -> bytes:
        answer = answers[0]
        blocks: list[dict[str, Any]] = []
        if answer.reasoning:
            blocks.append({"type": "thinking", "thinking": answer.reasoning, "signature": self._reply.id})
        if answer.content or not (answer.tools or answer.reasoning):
            blocks.append({"type": "text", "text": answer.content})
        blocks += [
            {"type": "tool_use", "id": tool_id(call.id), "name": call.name, "input": _input(call.arguments)}
            for call in answer.tools
        ]
        reason = stop_reason(answer.finish_reason, answer.stop_sequence)
        return encode(self._message(completion, blocks, reason, answer.stop_sequence))

    def _message(
        self, completion: Completion, blocks: list[dict[str, Any]], reason: str | None, sequence: str | None
    ) -> dict[str, Any]:
        return {
            "id": f"msg_{self._reply.id}",
            "type": "message",
            "role": "assistant",
            "model": self._reply.call.model,
            "content": blocks,
            "stop_reason": reason,
            "stop_sequence": sequence,
            "usage": usage_body(completion.usage),
        }


def _input(arguments: str) -> Any:
    """The arguments as an object; those that the limit cut off are no JSON, and `max_tokens` says so."""
    try:
        return msgspec.json.decode(arguments)
    except msgspec.DecodeError:
        return {}
