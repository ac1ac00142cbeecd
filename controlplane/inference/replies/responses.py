"""OpenAI's Responses: items and their parts, numbered events, the whole response at the end of each stream."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any

from controlplane.inference import sse
from controlplane.inference.completion import Completion, Update, Usage
from controlplane.inference.errors import ApiError
from controlplane.inference.replies.base import Answer, Reply, encode, named_event
from controlplane.inference.replies.chat import token_logprobs
from controlplane.inference.tool_text import ToolDelta
from workers.protocol import TokenLogprobs


def usage_body(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.hit_tokens},
        "output_tokens": usage.output_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.prompt_tokens + usage.output_tokens,
    }


class ResponsesFormat:
    keep_alive = sse.KEEP_ALIVE

    def __init__(self, reply: Reply) -> None:
        self._reply = reply
        self._sequence = 0
        self._items: list[dict[str, Any]] = []
        """All output items; the last is being written while `_open`."""
        self._open = False
        self._text: list[str] = []
        """Pieces of the open item's text or arguments."""
        self._logprobs: list[dict[str, Any]] = []
        self._finish_reason: str | None = None

    # --- streams -------------------------------------------------------------------------------------------------

    def begin(self, completion: Completion) -> bytes:
        response = self._response("in_progress", completion=None)
        return self._event("response.created", response=response) + self._event(
            "response.in_progress", response=response
        )

    def update(self, completion: Completion, update: Update) -> bytes:
        self._finish_reason = update.finish_reason or self._finish_reason
        events = b""
        if update.reasoning:
            events += self._switch("reasoning") + self._text_event("response.reasoning_text.delta", update.reasoning)
        if update.content:
            events += self._switch("message")
            reported = self._reported(update.tokens, update.logprobs)
            self._logprobs += reported
            events += self._text_event("response.output_text.delta", update.content, logprobs=reported)
        for delta in update.tools:
            events += self._tool(delta)
        return events

    def end(self, completion: Completion) -> bytes:
        empty = b"" if self._items else self._switch("message")
        closed = self._close()
        status = _status(self._finish_reason)
        response = self._response(status, completion=completion)
        return empty + closed + self._event(f"response.{status}", response=response)

    def error(self, error: ApiError) -> bytes:
        response = self._response("failed", completion=None)
        response["error"] = {"code": error.detail.code or error.detail.type, "message": str(error)}
        return self._event("response.failed", response=response)

    def _event(self, kind: str, **fields: Any) -> bytes:
        body = {"type": kind, "sequence_number": self._sequence, **fields}
        self._sequence += 1
        return named_event(kind, body)

    @property
    def _place(self) -> dict[str, Any]:
        return {"item_id": self._items[-1]["id"], "output_index": len(self._items) - 1}

    def _text_event(self, kind: str, text: str, **fields: Any) -> bytes:
        self._text.append(text)
        return self._event(kind, **self._place, content_index=0, delta=text, **fields)

    def _switch(self, kind: str) -> bytes:
        """Begin an item of `kind`, unless one is open."""
        if self._open and self._items[-1]["type"] == kind:
            return b""
        closed = self._close()
        item = _message_item([], "in_progress") if kind == "message" else _reasoning_item(None)
        events = closed + self._begin(item)
        part = _text_part("", []) if kind == "message" else {"type": "reasoning_text", "text": ""}
        return events + self._event("response.content_part.added", **self._place, content_index=0, part=part)

    def _begin(self, item: dict[str, Any]) -> bytes:
        self._items.append(item)
        self._open, self._text, self._logprobs = True, [], []
        return self._event("response.output_item.added", output_index=len(self._items) - 1, item=item)

    def _tool(self, delta: ToolDelta) -> bytes:
        events = b""
        if delta.name:
            events += self._close() + self._begin(_call_item(delta.id, delta.name, "", "in_progress"))
        if delta.arguments:
            self._text.append(delta.arguments)
            events += self._event("response.function_call_arguments.delta", **self._place, delta=delta.arguments)
        return events

    def _close(self) -> bytes:
        """The open item is complete (or as complete as it gets)."""
        if not self._open:
            return b""
        self._open = False
        item, text = self._items[-1], "".join(self._text)
        status = "incomplete" if _status(self._finish_reason) == "incomplete" else "completed"
        match item["type"]:
            case "message":
                part = _text_part(text, self._logprobs)
                self._items[-1] = item | {"content": [part], "status": status}
                events = self._event(
                    "response.output_text.done", **self._place, content_index=0, text=text, logprobs=self._logprobs
                ) + self._event("response.content_part.done", **self._place, content_index=0, part=part)
            case "reasoning":
                part = {"type": "reasoning_text", "text": text}
                self._items[-1] = item | {"content": [part]}
                events = self._event(
                    "response.reasoning_text.done", **self._place, content_index=0, text=text
                ) + self._event("response.content_part.done", **self._place, content_index=0, part=part)
            case _:
                self._items[-1] = item | {"arguments": text, "status": status}
                events = self._event(
                    "response.function_call_arguments.done", **self._place, name=item["name"], arguments=text
                )
        return events + self._event(
            "response.output_item.done", output_index=len(self._items) - 1, item=self._items[-1]
        )

    # --- whole ---------------------------------------------------------------------------------------------------

    def whole(self, completion: Completion, answers: Sequence[Answer]) -> bytes:
        answer = answers[0]
        status = _status(answer.finish_reason)
        own = "incomplete" if status == "incomplete" else "completed"
        if answer.reasoning:
            self._items.append(_reasoning_item([{"type": "reasoning_text", "text": answer.reasoning}]))
        if answer.content or not answer.tools:
            reported = self._reported(answer.tokens, answer.logprobs)
            self._items.append(_message_item([_text_part(answer.content, reported)], own))
        self._items += [_call_item(call.id, call.name, call.arguments, own) for call in answer.tools]
        return encode(self._response(status, completion=completion))

    def _response(self, status: str, *, completion: Completion | None) -> dict[str, Any]:
        """`completion` gives the usage of a response that has ended."""
        return {
            "id": f"resp_{self._reply.id}",
            "object": "response",
            "created_at": self._reply.created,
            "status": status,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "model": self._reply.call.model,
            "output": list(self._items),
            "usage": usage_body(completion.usage) if completion is not None else None,
            "user": None,
            **self._reply.call.settings,
        }

    def _reported(self, tokens: Sequence[int], reported: Sequence[TokenLogprobs] | None) -> list[dict[str, Any]]:
        wanted = self._reply.call.logprobs
        if wanted is None or not reported:
            return []
        return token_logprobs(tokens, reported, self._reply.tokenizer, wanted)


def _status(finish_reason: str | None) -> str:
    return "completed" if finish_reason in (None, "stop", "tool_calls") else "incomplete"


def _text_part(text: str, logprobs: list[dict[str, Any]]) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}


def _message_item(content: list[dict[str, Any]], status: str) -> dict[str, Any]:
    return {"id": _item_id("msg"), "type": "message", "role": "assistant", "status": status, "content": content}


def _reasoning_item(content: list[dict[str, Any]] | None) -> dict[str, Any]:
    return {"id": _item_id("rs"), "type": "reasoning", "summary": [], "content": content or []}


def _call_item(call_id: str, name: str, arguments: str, status: str) -> dict[str, Any]:
    return {
        "id": _item_id("fc"), "type": "function_call", "call_id": call_id, "name": name, "arguments": arguments,
        "status": status,
    }  # fmt: skip


def _item_id(prefix: str) -> str:
    return f"{prefix}_{secrets.token_hex(16)}"
