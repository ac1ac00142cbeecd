"""Checks that all protocols share: JSON, types, stop strings, roles, and contents that are text."""

from __future__ import annotations

import re
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

from controlplane.inference.errors import ApiError, invalid, unsupported

MAX_STOPS = 16
MAX_STOP_CHARS = 512
MAX_DEPTH = 200
"""Of nested arrays and objects: deeper JSON is refused before anything walks through it."""
MAX_BIASED = 1024
MAX_TOOLS = 512

T = TypeVar("T")
Seed = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Positive = Annotated[int, Meta(ge=1, le=2**31 - 1)]
ModelName = Annotated[str, Meta(min_length=1, max_length=256)]
Temperature = Annotated[float, Meta(ge=0, le=2)]
TopP = Annotated[float, Meta(gt=0, le=1)]
TopK = Annotated[int, Meta(ge=0, le=2**31 - 1)]
MinP = Annotated[float, Meta(ge=0, le=1)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
TopLogprobs = Annotated[int, Meta(ge=0, le=20)]


class StreamOptions(msgspec.Struct, kw_only=True):
    include_usage: bool = False
    include_obfuscation: bool = False
    """Accepted; nothing is obfuscated."""


def decode_object(body: bytes, *, ignored: frozenset[str]) -> dict[str, Any]:
    """The JSON object in `body` without the parameters that have no effect here."""
    try:
        document = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise invalid(f"The body is not valid JSON: {error}.", code="invalid_json") from error
    except RecursionError as error:
        raise _too_deep() from error
    if not isinstance(document, dict):
        raise invalid("The body must be a JSON object.", code="invalid_json")
    _check_depth(document)
    return {name: value for name, value in document.items() if name not in ignored}


def _check_depth(document: Any) -> None:
    """Level by level, without recursion."""
    level: list[Any] = [document]
    for _ in range(MAX_DEPTH):
        level = [
            inner
            for outer in level
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, (dict, list))
        ]
        if not level:
            return
    raise _too_deep()


def _too_deep() -> ApiError:
    return invalid(f"The body's JSON is nested too deeply (at most {MAX_DEPTH} levels).", code="invalid_json")


def convert(document: dict[str, Any], kind: type[T]) -> T:
    """Raises ApiError (400) with the parameter's name."""
    try:
        return msgspec.convert(document, kind)
    except msgspec.ValidationError as error:
        raise _validation_error(error) from error


_PATH = re.compile(r" - at `\$\.?([^`]*)`$")
_UNKNOWN = re.compile(r"unknown field `([^`]*)`")
_MISSING = re.compile(r"missing required field `([^`]*)`")


def _validation_error(error: msgspec.ValidationError) -> ApiError:
    """`Expected int, got str - at `$.seed`` becomes a sentence and a parameter."""
    text = str(error)
    path = _PATH.search(text)
    param = path[1].replace("[...]", "") if path else None
    reason = _PATH.sub("", text)
    if unknown := _UNKNOWN.search(reason):
        name = f"{param}.{unknown[1]}" if param else unknown[1]
        return invalid(f"Unrecognized request argument: `{name}`.", param=name, code="unknown_parameter")
    if missing := _MISSING.search(reason):
        return invalid(
            f"Missing required parameter: `{missing[1]}`.", param=missing[1], code="missing_required_parameter"
        )
    return invalid(f"Invalid value for `{param}`: {reason}.", param=param, code="invalid_value")


def stops(stop: str | list[str] | None, *, param: str = "stop") -> tuple[str, ...]:
    found = (stop,) if isinstance(stop, str) else tuple(stop or ())
    if len(found) > MAX_STOPS:
        raise invalid(f"`{param}` takes at most {MAX_STOPS} strings.", param=param)
    for text in found:
        if not text or len(text) > MAX_STOP_CHARS:
            raise invalid(f"Each string of `{param}` must have 1 to {MAX_STOP_CHARS} characters.", param=param)
    return found


def logit_bias(bias: dict[str, float] | None) -> dict[int, float]:
    """By token id. Whether the ids are in the vocabulary is checked with the model at hand."""
    if bias is None:
        return {}
    if len(bias) > MAX_BIASED:
        raise invalid(f"`logit_bias` takes at most {MAX_BIASED} tokens.", param="logit_bias")
    for token, value in bias.items():
        if not (token.isascii() and token.isdigit() and len(token) < 10):
            raise invalid(f"`{token[:40]}` is no token id.", param="logit_bias", code="invalid_value")
        if not -100 <= value <= 100:
            raise invalid("A bias must be between -100 and 100.", param="logit_bias", code="invalid_value")
    return {int(token): value for token, value in bias.items()}


def choices(n: int | None, most: int) -> int:
    if (n or 1) > most:
        raise invalid(f"`n` must be at most {most}.", param="n")
    return n or 1


def include_usage(options: StreamOptions | None, stream: bool | None) -> bool:
    if options is not None and not stream:
        raise invalid("`stream_options` is only allowed with `stream`: true.", param="stream_options")
    return options is not None and options.include_usage


def check_tools(tools: list[dict[str, Any]] | None) -> None:
    if tools is not None and len(tools) > MAX_TOOLS:
        raise invalid(f"`tools` takes at most {MAX_TOOLS} tools.", param="tools")


def refuse(name: str, why: str = "is not supported") -> ApiError:
    return unsupported(name, why=why)


_IMAGES = frozenset({"image_url", "input_image", "image", "input_file", "file", "document", "input_audio", "audio"})


def refuse_media(where: str, part: Any) -> None:
    """Images, files and sounds, by name: no model here takes any, and nothing is ever fetched for a client."""
    kind = part.get("type") if isinstance(part, dict) else None
    if kind in _IMAGES:
        what = "Images" if "image" in str(kind) else "Files and audio"
        raise ApiError(400, f"{what} are not supported by this model.", param=where, code="unsupported_content")


def text_part(where: str, part: Any, kinds: tuple[str, ...] = ("text",)) -> str:
    refuse_media(where, part)
    kind = part.get("type") if isinstance(part, dict) else None
    if kind not in kinds:
        named = " or ".join(f"`{kind}`" for kind in kinds)
        raise ApiError(400, f"Only parts of type {named} are supported here.", param=where, code="unsupported_content")
    text = part.get("text")
    if not isinstance(text, str):
        raise invalid("A text part needs a string `text`.", param=f"{where}.text", code="invalid_value")
    return text
