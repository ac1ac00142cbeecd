"""What clients see when something fails: OpenAI's error body, a status, and headers that steer the SDKs' retries."""

from __future__ import annotations

import msgspec
from django.http import HttpResponse

from workers.protocol import ErrorCode


class ErrorDetail(msgspec.Struct, kw_only=True):
    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorBody(msgspec.Struct, kw_only=True):
    error: ErrorDetail


class ApiError(Exception):
    """A failure with its HTTP meaning. `message` is for the client: never put a key, a path or a traceback in it."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        type: str = "invalid_request_error",  # the name in the body
        code: str | None = None,
        param: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.detail = ErrorDetail(message=message, type=type, param=param, code=code)
        self.retry_after_s = retry_after_s

    def body(self) -> bytes:
        return msgspec.json.encode(ErrorBody(error=self.detail))

    def response(self) -> HttpResponse:
        """The response before the first byte; afterwards the reply's format writes the same error."""
        response = HttpResponse(self.body(), status=self.status, content_type="application/json")
        if self.status == 401:
            response["www-authenticate"] = "Bearer"
        if self.retry_after_s is not None:
            response["retry-after"] = str(max(1, round(self.retry_after_s)))
            response["retry-after-ms"] = str(round(self.retry_after_s * 1000))
        return response


def invalid(message: str, *, param: str | None = None, code: str | None = None) -> ApiError:
    return ApiError(400, message, param=param, code=code)


def unsupported(name: str, *, why: str = "is not supported yet") -> ApiError:
    return ApiError(400, f"`{name}` {why}.", param=name, code="unsupported_parameter")


def unauthenticated(message: str) -> ApiError:
    return ApiError(401, message, type="authentication_error", code="invalid_api_key")


def forbidden(message: str) -> ApiError:
    return ApiError(403, message, type="permission_error", code="permission_denied")


def model_not_found(model: str) -> ApiError:
    return ApiError(
        404,
        f"The model `{model[:128]}` does not exist or you do not have access to it.",
        param="model",
        code="model_not_found",
    )


def too_large(limit: int) -> ApiError:
    return ApiError(413, f"The request body is larger than {limit} bytes.", code="request_too_large")


def overloaded(message: str, *, retry_after_s: float) -> ApiError:
    return ApiError(503, message, type="overloaded_error", code="overloaded", retry_after_s=retry_after_s)


def context_length(*, limit: int, prompt: int, output: int | None) -> ApiError:
    """Both numbers: what the context holds and what was asked for."""
    wanted = f"{prompt} in the messages" + (f", {output} in the completion" if output is not None else "")
    return ApiError(
        400,
        f"This model's maximum context length is {limit} tokens. However, you requested {prompt + (output or 0)} "
        f"tokens ({wanted}). Please reduce the length of the messages or completion.",
        param="messages",
        code="context_length_exceeded",
    )


def deadline(seconds: float) -> ApiError:
    return ApiError(504, f"The request took longer than {seconds:g} s.", type="timeout_error", code="deadline_exceeded")


def internal() -> ApiError:
    """Details are in the gateway's log, under the request id."""
    return ApiError(
        500, "The server had an error while processing the request.", type="api_error", code="internal_error"
    )


_UNAVAILABLE: dict[ErrorCode, str] = {
    ErrorCode.STALE_EPOCH: "The worker restarted while it was given the request.",
    ErrorCode.VERSION: "The worker speaks another protocol version.",
    ErrorCode.NOT_READY: "The worker is not ready.",
    ErrorCode.PEER_LOST: "A worker was lost while it served the request.",
    ErrorCode.TRANSFER: "The transfer between prefill and decode failed.",
    ErrorCode.OUT_OF_BLOCKS: "The workers have no cache room for the request.",
    ErrorCode.QUEUE_FULL: "The workers' queues are full.",
}


def from_worker(code: ErrorCode, message: str, *, retry_after_s: float, deadline_s: float) -> ApiError:
    """A worker's `Failed` frame as the client's error. Clients read the worker's own words on their own faults only."""
    match code:
        case ErrorCode.CONTEXT_LENGTH:
            return ApiError(400, message, param="messages", code="context_length_exceeded")
        case ErrorCode.INVALID:
            return invalid(message)
        case ErrorCode.DEADLINE:
            return deadline(deadline_s)
        case ErrorCode.QUEUE_FULL | ErrorCode.OUT_OF_BLOCKS:
            return overloaded(_UNAVAILABLE[code], retry_after_s=retry_after_s)
        case ErrorCode.INTERNAL:
            return internal()
        case _:
            return ApiError(
                503, _UNAVAILABLE[code], type="api_error", code=str(code.value), retry_after_s=retry_after_s
            )
