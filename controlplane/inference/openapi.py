"""The OpenAPI description of the inference API: bodies from the very types that check them."""

from __future__ import annotations

import copy
from functools import cache
from typing import Any

import msgspec

from controlplane.inference.schema.chat import ChatBody
from controlplane.inference.schema.completions import CompletionBody
from controlplane.inference.schema.messages import MessagesBody
from controlplane.inference.schema.responses import ResponsesBody

_OPENAI_ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}
_ANTHROPIC_ERROR = {
    "type": "object",
    "required": ["type", "error", "request_id"],
    "properties": {
        "type": {"const": "error"},
        "error": {
            "type": "object",
            "required": ["type", "message"],
            "properties": {"type": {"type": "string"}, "message": {"type": "string"}, "details": {"type": "object"}},
        },
        "request_id": {"type": "string"},
    },
}
_FAILURES = {
    400: "A parameter is wrong; the error names it.",
    401: "No key, or one that is unknown, expired or revoked.",
    402: "The budget of the key or its tenant is used up.",
    403: "The key lacks the scope.",
    404: "Unknown model.",
    405: "Another method than the endpoint's.",
    408: "The body came too slowly.",
    413: "The body is too large.",
    429: "A rate limit is reached; `retry-after` says for how long.",
    500: "A fault of the server.",
    504: "Not finished within the deadline.",
}
_OVERLOADED = "No workers are ready, or queues are full; `retry-after` says when to try again."


def _object(kind: str, *required: str, **properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "required": ["object", *required],
        "properties": {"object": {"const": kind}, **properties},
    }


_USAGE = {"type": "object", "required": ["prompt_tokens", "completion_tokens", "total_tokens"]}
_CHAT = _object(
    "chat.completion", "id", "created", "model", "choices", "usage", choices={"type": "array"}, usage=_USAGE
)
_COMPLETION = _object(
    "text_completion", "id", "created", "model", "choices", "usage", choices={"type": "array"}, usage=_USAGE
)
_RESPONSE = _object("response", "id", "created_at", "status", "model", "output", "usage", output={"type": "array"})
_MESSAGE = {
    "type": "object",
    "required": ["id", "type", "role", "model", "content", "stop_reason", "usage"],
    "properties": {"type": {"const": "message"}, "role": {"const": "assistant"}, "content": {"type": "array"}},
}
_COUNT = {"type": "object", "required": ["input_tokens"], "properties": {"input_tokens": {"type": "integer"}}}
_MODELS = {"type": "object", "required": ["data"], "properties": {"data": {"type": "array"}}}
_MODEL = {"type": "object", "required": ["id"], "properties": {"id": {"type": "string"}}}

_BODIES = {
    "/v1/chat/completions": ("Chat Completions", ChatBody, _CHAT),
    "/v1/completions": ("Legacy completions", CompletionBody, _COMPLETION),
    "/v1/responses": ("Responses, without a store", ResponsesBody, _RESPONSE),
    "/v1/messages": ("Messages", MessagesBody, _MESSAGE),
    "/v1/messages/count_tokens": ("Tokens of a prompt", MessagesBody, _COUNT),
}


@cache
def _document() -> dict[str, Any]:
    kinds = [body for _, body, _ in _BODIES.values()]
    _, components = msgspec.json.schema_components(kinds, ref_template="#/components/schemas/{name}")
    paths: dict[str, Any] = {path: {"post": _post(path)} for path in _BODIES}
    paths["/v1/models"] = {"get": _get("What can be asked for", _MODELS)}
    paths["/v1/models/{model}"] = {"get": _get("One model", _MODEL, parameter="model")}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Galley inference API", "version": "1"},
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"key": []}],
    }


def document() -> dict[str, Any]:
    """A copy: callers may add servers and the like."""
    return copy.deepcopy(_document())


def _post(path: str) -> dict[str, Any]:
    summary, body, answer = _BODIES[path]
    content: dict[str, Any] = {"application/json": {"schema": answer}}
    if not path.endswith("count_tokens"):
        content["text/event-stream"] = {"schema": {"type": "string"}}
    return {
        "summary": summary,
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": {"$ref": f"#/components/schemas/{body.__name__}"}}},
        },
        "responses": {"200": {"description": "The answer.", "content": content}, **_failures("messages" in path)},
    }


def _get(summary: str, answer: dict[str, Any], *, parameter: str | None = None) -> dict[str, Any]:
    described: dict[str, Any] = {
        "summary": summary,
        "responses": {
            "200": {"description": "The answer.", "content": {"application/json": {"schema": answer}}},
            **_failures(False),
        },
    }
    if parameter is not None:
        described["parameters"] = [
            {"name": parameter, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
        ]
    return described


def _failures(anthropic: bool) -> dict[str, Any]:
    shape = _ANTHROPIC_ERROR if anthropic else _OPENAI_ERROR
    texts = {**_FAILURES, 529 if anthropic else 503: _OVERLOADED}
    return {
        str(status): {"description": text, "content": {"application/json": {"schema": shape}}}
        for status, text in sorted(texts.items())
    }
