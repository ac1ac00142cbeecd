"""Legacy completions: text by choice, several prompts in one reply, the old shape of log-probabilities."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from controlplane.inference import sse
from controlplane.inference.completion import Completion, Update
from controlplane.inference.errors import ApiError
from controlplane.inference.replies.base import Answer, Reply, encode, fingerprint, finite, spelled
from controlplane.inference.replies.chat import usage_body
from workers.protocol import TokenLogprobs


class CompletionFormat:
    keep_alive = sse.KEEP_ALIVE

    def __init__(self, reply: Reply) -> None:
        self._reply = reply
        self._offsets: dict[int, int] = {}
        """Characters of each choice so far, for `text_offset`."""

    def begin(self, completion: Completion) -> bytes:
        if not self._reply.call.echo:
            return b""
        each = self._reply.call.choices
        return b"".join(
            self._chunk(completion, self._choice(at * each + one, text))
            for at, text in enumerate(self._reply.prompt_texts)
            for one in range(each)
        )

    def update(self, completion: Completion, update: Update) -> bytes:
        logprobs = self._logprobs(update.choice, update.tokens, update.logprobs)
        if not update.content and logprobs is None and update.finish_reason is None:
            return b""
        choice = self._choice(update.choice, update.content, logprobs, update.finish_reason)
        return self._chunk(completion, choice)

    def end(self, completion: Completion) -> bytes:
        if not self._reply.call.include_usage:
            return sse.DONE
        return sse.event(encode(self._body(completion, [], usage_body(completion.usage)))) + sse.DONE

    def error(self, error: ApiError) -> bytes:
        return sse.event(error.body())

    def whole(self, completion: Completion, answers: Sequence[Answer]) -> bytes:
        each, echoed = self._reply.call.choices, self._reply.prompt_texts
        choices = [
            self._choice(
                index,
                (echoed[index // each] if self._reply.call.echo else "") + answer.content,
                self._logprobs(index, answer.tokens, answer.logprobs or None),
                answer.finish_reason,
            )
            for index, answer in enumerate(answers)
        ]
        return encode(self._body(completion, choices, usage_body(completion.usage)))

    def _chunk(self, completion: Completion, choice: dict[str, Any]) -> bytes:
        body = self._body(completion, [choice], None)
        if not self._reply.call.include_usage:
            del body["usage"]
        return sse.event(encode(body))

    def _body(self, completion: Completion, choices: list[dict[str, Any]], usage: Any) -> dict[str, Any]:
        return {
            "id": f"cmpl-{self._reply.id}",
            "object": "text_completion",
            "created": self._reply.created,
            "model": self._reply.call.model,
            "system_fingerprint": fingerprint(completion.revision),
            "choices": choices,
            "usage": usage,
        }

    @staticmethod
    def _choice(index: int, text: str, logprobs: Any = None, reason: str | None = None) -> dict[str, Any]:
        return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": reason}

    def _logprobs(
        self, choice: int, tokens: Sequence[int], reported: Sequence[TokenLogprobs] | None
    ) -> dict[str, Any] | None:
        wanted = self._reply.call.logprobs
        if wanted is None or reported is None:
            return None
        texts = [self._text(token) for token in tokens]
        offsets, offset = [], self._offsets.get(choice, 0)
        for text in texts:
            offsets.append(offset)
            offset += len(text)
        self._offsets[choice] = offset
        return {
            "tokens": texts,
            "token_logprobs": [finite(one.logprob) for one in reported],
            "top_logprobs": [
                {self._text(other): finite(logprob) for other, logprob in one.top[:wanted]} for one in reported
            ],
            "text_offset": offsets,
        }

    def _text(self, token: int) -> str:
        return spelled(self._reply.tokenizer, token).decode(errors="replace")
