"""Chat completions: chunks of a stream, whole responses, usage, log-probabilities."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from controlplane.inference import sse
from controlplane.inference.completion import Completion, Update, Usage
from controlplane.inference.errors import ApiError
from controlplane.inference.replies.base import Answer, Reply, encode, fingerprint, finite, spelled
from controlplane.inference.tokenization import ModelTokenizer
from controlplane.inference.tool_text import ToolDelta
from workers.protocol import TokenLogprobs


def usage_body(usage: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.prompt_tokens + usage.output_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.hit_tokens},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "prompt_cache_hit_tokens": usage.hit_tokens,
        "prompt_cache_miss_tokens": usage.miss_tokens,
    }


def token_logprobs(
    tokens: Sequence[int], reported: Sequence[TokenLogprobs], tokenizer: ModelTokenizer, alternatives: int
) -> list[dict[str, Any]]:
    return [
        {
            **_one(tokenizer, token, one.logprob),
            "top_logprobs": [_one(tokenizer, other, logprob) for other, logprob in one.top[:alternatives]],
        }
        for token, one in zip(tokens, reported, strict=False)
    ]


def _one(tokenizer: ModelTokenizer, token: int, logprob: float) -> dict[str, Any]:
    raw = spelled(tokenizer, token)
    return {"token": raw.decode(errors="replace"), "logprob": finite(logprob), "bytes": list(raw)}


class ChatFormat:
    keep_alive = sse.KEEP_ALIVE

    def __init__(self, reply: Reply) -> None:
        self._reply = reply
        self._id = f"chatcmpl-{reply.id}"
        self._revision = ""
        self._head = b""

    # --- streams -------------------------------------------------------------------------------------------------

    def begin(self, completion: Completion) -> bytes:
        roles = [
            {"index": index, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}
            for index in range(self._reply.call.choices)
        ]
        return self._chunk(completion, encode(roles))

    def update(self, completion: Completion, update: Update) -> bytes:
        """One event per kind of news; most updates are one piece of text."""
        logprobs = self._logprobs(update)
        events = b""
        if update.reasoning:
            events += self._delta(completion, update.choice, "reasoning_content", update.reasoning, None)
        if update.content or logprobs is not None:
            events += self._delta(completion, update.choice, "content", update.content, logprobs)
        for delta in update.tools:
            events += self._tool(completion, update.choice, delta)
        if update.finish_reason is not None:
            choice = {"index": update.choice, "delta": {}, "logprobs": None, "finish_reason": update.finish_reason}
            events += self._chunk(completion, encode([choice]))
        return events

    def end(self, completion: Completion) -> bytes:
        if not self._reply.call.include_usage:
            return sse.DONE
        return self._chunk(completion, b"[]", usage=encode(usage_body(completion.usage))) + sse.DONE

    def error(self, error: ApiError) -> bytes:
        return sse.event(error.body())

    def _delta(self, completion: Completion, choice: int, field: str, text: str, logprobs: Any) -> bytes:
        reported = b"null" if logprobs is None else encode(logprobs)
        choices = b'[{"index":%d,"delta":{"%s":%s},"logprobs":%s,"finish_reason":null}]' % (
            choice, field.encode(), encode(text), reported,
        )  # fmt: skip
        return self._chunk(completion, choices)

    def _tool(self, completion: Completion, choice: int, delta: ToolDelta) -> bytes:
        call: dict[str, Any] = {"index": delta.index}
        function: dict[str, str] = {"arguments": delta.arguments}
        if delta.name:
            call |= {"id": delta.id, "type": "function"}
            function = {"name": delta.name, **function}
        body = {"tool_calls": [{**call, "function": function}]}
        return self._chunk(
            completion, encode([{"index": choice, "delta": body, "logprobs": None, "finish_reason": None}])
        )

    def _chunk(self, completion: Completion, choices: bytes, *, usage: bytes = b"null") -> bytes:
        """What all chunks have in common is encoded once; a retry elsewhere may change the revision."""
        if completion.revision != self._revision:
            self._revision = completion.revision
            common = {
                "id": self._id,
                "object": "chat.completion.chunk",
                "created": self._reply.created,
                "model": self._reply.call.model,
                "system_fingerprint": fingerprint(self._revision),
            }
            self._head = b"data: " + encode(common)[:-1] + b',"choices":'
        if self._reply.call.include_usage:
            return self._head + choices + b',"usage":' + usage + b"}\n\n"
        return self._head + choices + b"}\n\n"

    def _logprobs(self, update: Update) -> dict[str, Any] | None:
        wanted = self._reply.call.logprobs
        if wanted is None or not update.tokens:
            return None
        return {
            "content": token_logprobs(update.tokens, update.logprobs or (), self._reply.tokenizer, wanted),
            "refusal": None,
        }

    # --- whole ---------------------------------------------------------------------------------------------------

    def whole(self, completion: Completion, answers: Sequence[Answer]) -> bytes:
        return encode(
            {
                "id": self._id,
                "object": "chat.completion",
                "created": self._reply.created,
                "model": self._reply.call.model,
                "system_fingerprint": fingerprint(completion.revision),
                "choices": [self._choice(index, answer) for index, answer in enumerate(answers)],
                "usage": usage_body(completion.usage),
            }
        )

    def _choice(self, index: int, answer: Answer) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": answer.content, "refusal": None}
        if self._reply.thinking:
            message["reasoning_content"] = answer.reasoning
        if answer.tools:
            message["content"] = answer.content or None
            message["tool_calls"] = [
                {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
                for call in answer.tools
            ]
        logprobs = None
        if (wanted := self._reply.call.logprobs) is not None:
            content = token_logprobs(answer.tokens, answer.logprobs, self._reply.tokenizer, wanted)
            logprobs = {"content": content, "refusal": None}
        return {"index": index, "message": message, "logprobs": logprobs, "finish_reason": answer.finish_reason}
